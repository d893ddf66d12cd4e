"""The Dockerfile's build stage, done in a plain folder: what it copies exists, and what it installs runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import LIMIT_S, ROOT

FAR = ("apt-get", "pip install")  # steps that would change this machine


def instructions(stage: int) -> list[tuple[str, str]]:
    """Name and argument of each instruction of a stage, from 0."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", "").splitlines() if line.strip()]
    parted = [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]
    starts = [number for number, (name, _) in enumerate(parted) if name == "FROM"]
    return parted[starts[stage] + 1 : (starts[stage + 1 :] or [None])[0]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after the build stage."""
    folder = tmp_path_factory.mktemp("image")
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    for name, rest in instructions(0):
        if name == "COPY":
            *sources, target = shlex.split(rest)
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / source, folder / target)
        elif name == "RUN" and not any(far in rest for far in FAR):
            # As there, but with this machine's Python, without compiling, and with links in place of gigabytes.
            own = {"UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "symlink"}
            finished = subprocess.run(
                rest, shell=True, cwd=folder, env={**environment, **own}, capture_output=True, text=True, check=False,
                timeout=LIMIT_S,
            )  # fmt: skip
            assert finished.returncode == 0, f"{rest}\n{finished.stderr}"
    return folder


def run(built: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of the environment that was built, elsewhere than in the sources."""
    clean = {"PATH": f"{built / '.venv' / 'bin'}:/usr/bin:/bin", "HOME": str(built), **environment}
    return subprocess.run(
        [str(built / ".venv" / "bin" / command[0]), *command[1:]],
        cwd="/", env=clean, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip


def test_the_built_environment_has_the_command_the_models_and_no_triton_of_its_own(built: Path) -> None:
    shown = run(built, "qwen3-tts-triton", "config", QWEN3_TTS_MODEL="some/model")
    assert shown.returncode == 0, shown.stderr
    assert "# model: some/model" in shown.stdout
    asked = (
        "from proxy.triton_server import find_models, count_python_models as c; p = find_models(None); print(p, c(p))"
    )
    found = run(built, "python", "-c", asked)
    folder, count = found.stdout.split()
    assert Path(folder).is_relative_to(built)
    assert int(count) == len(list((ROOT / "model_repository").glob("*/1/model.py")))
    missing = run(built, "python", "-c", "import pytriton")
    assert "ModuleNotFoundError" in missing.stderr
    assert run(built, "python", "-c", "import pytest").returncode != 0


def test_serve_asks_for_the_images_triton_where_there_is_none(built: Path) -> None:
    refused = run(built, "qwen3-tts-triton", "serve", "--port", "0", "--triton-ports", "auto", QWEN3_TTS_MODEL="noise")
    assert refused.returncode == 2
    assert "No Triton server found" in refused.stderr


def test_the_image_is_pinned_and_both_stages_are_of_it() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (tag,) = re.findall(r"^ARG TRITON=nvcr\.io/nvidia/tritonserver:(\S+)$", text, re.MULTILINE)
    assert re.fullmatch(r"\d\d\.\d\d-py3", tag)
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${TRITON}"] * 2


def test_the_image_runs_as_nobody_special_under_an_init_with_a_health_check() -> None:
    last = dict(instructions(1))
    assert last["USER"] == "10001"
    assert last["ENTRYPOINT"].startswith('["tini", "--", "qwen3-tts-triton", "serve"')
    assert "/ready" in last["HEALTHCHECK"]
    assert last["VOLUME"] == '["/models", "/voices"]'


def test_what_the_dockerfile_copies_is_let_through_to_it() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for name, rest in instructions(0):
        if name == "COPY":
            for source in shlex.split(rest)[:-1]:
                assert f"!{source}" in ignored
