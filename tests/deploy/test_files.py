"""Laws of what is deployed: every file is valid, names what exists, and agrees with the others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.metrics import Metrics
from tests.serving import LIMIT_S, ROOT

KUBERNETES = sorted((ROOT / "docs" / "deploy" / "kubernetes").glob("*.yaml"))
COMPOSE = ("compose.yaml", "docs/deploy/compose.two-gpus.yaml")
ENGINE_METRIC = re.compile(r'"(qwen3_tts_\w+)"')
TRITONS_OWN = {"nv_gpu_utilization", "nv_gpu_memory_used_bytes"}  # where there is a GPU


def run(*command: str) -> None:
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def program(name: str) -> str:
    """One that a package of ours brings."""
    return str(Path(sys.executable).parent / name)


def test_hadolint_has_nothing_to_say_of_the_dockerfile() -> None:
    run(program("hadolint"), "Dockerfile")


@pytest.mark.parametrize("path", COMPOSE)
def test_compose_understands_its_files(path: str) -> None:
    run("docker-compose", "-f", path, "--project-directory", ".", "config", "--quiet")


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_knows_every_field_of_the_manifests(path: Path) -> None:
    run(program("kubernetes-validate"), "--strict", str(path))


def pods() -> dict[str, dict[str, Any]]:
    """Name of the workload -> it, as the manifests have it."""
    documents = [entry for path in KUBERNETES for entry in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    return {entry["metadata"]["name"]: entry["spec"] for entry in documents if "template" in entry.get("spec", {})}


def test_the_proxies_know_every_engine_by_its_name() -> None:
    (arguments,) = (container["args"] for container in pods()["tts-proxy"]["template"]["spec"]["containers"])
    replicas = pods()["triton"]["replicas"]
    urls = [argument for argument in arguments if argument.endswith(":8001")]
    assert urls == [f"triton-{number}.triton:8001" for number in range(replicas)]


@pytest.mark.parametrize("name", ["triton", "tts-proxy"])
def test_a_pod_is_given_the_time_to_finish_what_it_speaks_and_is_ready_by_a_real_utterance(name: str) -> None:
    spec = pods()[name]["template"]["spec"]
    (container,) = spec["containers"]
    drain_s = float(container["args"][container["args"].index("--drain-timeout") + 1])
    pause_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] > drain_s + pause_s + 10
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


@pytest.mark.parametrize("path", COMPOSE)
def test_compose_waits_longer_than_a_server_drains(path: str) -> None:
    services = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))["services"]
    ours = [service for service in services.values() if service["image"] == "qwen3-tts-triton"]
    assert ours
    for service in ours:
        drain_s = float(service["command"][service["command"].index("--drain-timeout") + 1])
        assert float(service["stop_grace_period"].removesuffix("s")) > drain_s + 10


def test_prometheus_scrapes_the_service_of_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    prometheus = yaml.safe_load((ROOT / "docs/deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    targets = [one for job in prometheus["scrape_configs"] for part in job["static_configs"] for one in part["targets"]]
    assert targets == ["tts:8000", "tts:8002"]
    assert "tts" in services
    assert "--triton-host" in services["tts"]["command"]  # else 8002 is deaf to Prometheus


def test_every_file_that_compose_mounts_is_there() -> None:
    for path in COMPOSE:
        for service in yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))["services"].values():
            for volume in service.get("volumes", []):
                if volume.startswith("."):
                    assert (ROOT / volume.split(":")[0]).is_file()


def metrics() -> set[str]:
    """All that exist, with the series of histograms."""
    metrics = Metrics()
    metrics.watch([])
    proxys = set(re.findall(r"^# TYPE (\S+)", metrics.text().decode(), re.MULTILINE))
    models = (ROOT / "model_repository").glob("*/1/model.py")
    engines = {name for path in models for name in ENGINE_METRIC.findall(path.read_text(encoding="utf-8"))}
    names = proxys | engines | TRITONS_OWN
    return names | {f"{name}_{suffix}" for name in names for suffix in ("bucket", "sum", "count", "total")}


def test_the_dashboard_and_the_autoscaler_ask_for_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "docs/deploy/grafana/dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"(?:qwen3_tts|nv)_\w+", query)}
    scaler = (ROOT / "docs/deploy/kubernetes/proxy.yaml").read_text(encoding="utf-8")
    asked |= set(re.findall(r"metric: \{name: (\w+)\}", scaler))
    assert len(asked) > 20
    assert asked - metrics() == set()
