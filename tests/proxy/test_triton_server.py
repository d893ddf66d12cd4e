"""Laws of finding Triton: the setting, then PATH, then the wheel; what is missing is named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from engine_lib.errors import ConfigurationError
from proxy import triton_server
from tests.serving import ROOT


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "tritonserver"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    return program


def test_the_setting_comes_before_path_and_path_before_the_wheel(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path / "chosen"
    chosen.symlink_to(installed)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert triton_server.find(None, tmp_path / "scratch").origin == "the nvidia-pytriton wheel"
    monkeypatch.setenv("PATH", str(installed.parent))
    assert triton_server.find(None, tmp_path).program == installed
    assert triton_server.find(str(chosen), tmp_path).program == chosen


def test_an_installed_server_keeps_its_own_libraries_and_backends(installed: Path, tmp_path: Path) -> None:
    found = triton_server.find(str(installed), tmp_path)
    environment = found.environment({"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/theirs"})
    assert environment["LD_LIBRARY_PATH"] == "/theirs"
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.prefix) / "bin")
    command = found.command(tmp_path, host="127.0.0.1", grpc=1, metrics=2, http=3, region_prefix="x-")
    assert not [part for part in command if "backend-directory" in part]


def test_the_wheels_server_gets_a_backend_with_the_stub_of_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    found = triton_server.find(None, tmp_path)
    assert found.backends is not None
    files = {path.name for path in (found.backends / "python").iterdir() if path.resolve().is_file()}
    assert files == {"libtriton_python.so", "triton_python_backend_utils.py", "triton_python_backend_stub"}
    libraries = found.environment({"LD_LIBRARY_PATH": "/theirs"})["LD_LIBRARY_PATH"].split(os.pathsep)
    assert libraries[0].endswith("nvidia_pytriton.libs")
    assert (Path(libraries[1]) / f"libpython{triton_server.PYTHON}.so.1.0").is_file()
    assert libraries[2] == "/theirs"


def test_a_missing_libpython_is_named_with_its_debian_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(triton_server, "library_folders", lambda: [tmp_path])
    with pytest.raises(ConfigurationError, match=rf"apt-get install libpython{triton_server.PYTHON}$"):
        triton_server.find(None, tmp_path)


def test_only_models_in_a_process_of_their_own_need_shared_memory() -> None:
    assert triton_server.count_python_models(ROOT / "model_repository") == 3


def test_the_packages_own_models_are_found() -> None:
    models = triton_server.find_models(None)
    assert {path.parent.name for path in models.glob("*/config.pbtxt")} == {"talker", "codec", "tts", "voice"}
