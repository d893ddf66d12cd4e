"""Find a Triton Inference Server and say how to start it on our models. Starts nothing itself."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_lib.errors import ConfigurationError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
EXIT_TIMEOUT_S = 5  # how long Triton lets direct clients finish; a cancelled request may make it wait this long


@dataclass(frozen=True)
class Triton:
    """A server that can be started: its program, where its backends are, and its environment's additions."""

    program: Path
    origin: str  # in words, for people
    backends: Path | None  # None: where the program was built to look
    library_path: str  # goes before the LD_LIBRARY_PATH of the server, and of nothing else

    def command(
        self, repository: Path, *, host: str, grpc: int, metrics: int, http: int, region_prefix: str
    ) -> list[str]:
        """The command line of a server over `repository`, on these ports of `host`."""
        backends = [f"--backend-directory={self.backends}"] if self.backends else []
        return [
            str(self.program),
            f"--model-repository={repository}",
            *backends,
            f"--grpc-address={host}", f"--grpc-port={grpc}",
            f"--http-address={host}", f"--http-port={http}",
            f"--metrics-address={host}", f"--metrics-port={metrics}",
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
            f"--backend-config=python,shm-region-prefix-name={region_prefix}",
        ]  # fmt: skip

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` for the server: our Python first on PATH, since its stubs take their packages from that one."""
        environment = dict(base)
        path = base.get("PATH", os.defpath)
        environment["PATH"] = os.pathsep.join([str(Path(sys.prefix) / "bin"), path])
        if self.library_path:
            inherited = base.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [self.library_path, inherited]))
        return environment


def find(setting: str | None, scratch: Path) -> Triton:
    """The server that `setting` names, else the one on PATH, else the wheel's, whose parts are laid out in `scratch`.

    Raises ConfigurationError that says what is missing.
    """
    if setting:
        program = shutil.which(setting)
        if program is None:
            raise ConfigurationError(f"No Triton server at {setting!r}: not an executable file.", param="tritonserver")
        return _installed(Path(program))
    if program := shutil.which("tritonserver"):
        return _installed(Path(program))
    specification = importlib.util.find_spec("pytriton")
    if specification is None or specification.origin is None:
        raise ConfigurationError(
            "No Triton server found: none on PATH, QWEN3_TTS_TRITONSERVER isn't set, and the package nvidia-pytriton, "
            "which carries one, isn't installed (uv sync --group triton)."
        )
    return _from_wheel(Path(specification.origin).parents[1], scratch)


def _installed(program: Path) -> Triton:
    return Triton(program=program.absolute(), origin=str(program), backends=None, library_path="")


def _from_wheel(site: Path, scratch: Path) -> Triton:
    """The server of the nvidia-pytriton wheel under `site`. Its backend directory lacks the stub for our Python."""
    server = site / "pytriton" / "tritonserver"
    stub = server / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    if not stub.is_file():
        raise ConfigurationError(f"The Triton server of nvidia-pytriton has no Python backend for Python {PYTHON}.")
    backend = scratch / "backends" / "python"
    backend.mkdir(parents=True)
    for source in [*(server / "backends" / "python").iterdir(), stub]:
        (backend / source.name).symlink_to(source)
    libraries = [site / "nvidia_pytriton.libs", libpython().parent]
    return Triton(
        program=server / "bin" / "tritonserver",
        origin="the nvidia-pytriton wheel",
        backends=backend.parent,
        library_path=os.pathsep.join(map(str, libraries)),
    )


def libpython() -> Path:
    """The shared library of our Python, which the wheel's stub is linked with."""
    name = f"libpython{PYTHON}.so.1.0"
    for folder in library_folders():
        if (folder / name).is_file():
            return folder / name
    raise ConfigurationError(
        f"{name} isn't installed, and Triton's Python backend needs it. "
        f"On Debian and Ubuntu: apt-get install libpython{PYTHON}"
    )


def library_folders() -> list[Path]:
    """Where the library of our Python may be. LIBDIR alone is wrong for a Python that was moved after its build."""
    configured = Path(sysconfig.get_config_var("LIBDIR") or "")
    architecture = sysconfig.get_config_var("MULTIARCH") or ""
    return [configured, Path(sys.base_prefix) / "lib", configured / architecture, Path("/usr/lib") / architecture]


def find_models(setting: str | None) -> Path:
    """The model repository: `setting`, else the one in the package, else the one beside it in a checkout."""
    package = Path(__file__).parent
    places = [Path(setting)] if setting else [package / "model_repository", package.parent / "model_repository"]
    for place in places:
        if place.is_dir():
            return place.resolve()
    raise ConfigurationError(f"No model repository at {places[-1]}.", param="model_repository")


def count_python_models(repository: Path) -> int:
    """How many models of `repository` run in a process of the Python backend, each with a shared-memory region."""
    configs = (path.read_text(encoding="utf-8") for path in repository.glob("*/config.pbtxt"))
    return sum(bool(re.search(r'^\s*backend\s*:\s*"python"', config, re.MULTILINE)) for config in configs)
