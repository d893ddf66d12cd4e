"""The house rules that a reader relies on: who imports whom, and that the Triton files obey the contract."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine_lib import wire

ROOT = Path(__file__).parent.parent
TRAINING = "engine_lib.training"
TENSOR = re.compile(r'name: "(\w+)" data_type: TYPE_(\w+) dims: \[ ([^\]]+) \]( optional: true)?')


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def offenders(folder: str, *forbidden: str, but: tuple[str, ...] = ()) -> list[str]:
    """Imports in `folder` (or file) that begin with a forbidden module."""
    start = ROOT / folder
    files = [start] if start.is_file() else sorted(start.rglob("*.py"))
    assert files
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in sorted(imports(path))
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
        and not any(name == module or name.startswith(f"{module}.") for module in but)
    ]


def test_the_engine_knows_no_http_and_no_triton() -> None:
    assert offenders("engine_lib", "proxy", "fastapi", "tritonclient", "triton_python_backend_utils") == []


def test_the_proxy_knows_the_contract_alone_and_no_torch() -> None:
    contract = ("engine_lib.wire", "engine_lib.errors", "engine_lib.profile")
    found = offenders("proxy", "engine_lib", "torch", "transformers", "triton_python_backend_utils", but=contract)
    # `from engine_lib import wire` imports both the package and the module.
    assert [line for line in found if not line.endswith(" imports engine_lib")] == []


def test_the_load_generator_is_a_client_alone() -> None:
    contract = (
        "engine_lib.wire",
        "engine_lib.errors",
        "proxy.bench",
        "proxy.speak",
        "proxy.stream",
        "proxy.triton_client",
    )
    found = offenders("proxy/bench", "engine_lib", "proxy", "torch", "fastapi", but=contract)
    assert [line for line in found if not line.endswith((" imports engine_lib", " imports proxy"))] == []
    users = {line.split()[0] for line in offenders("proxy", "proxy.bench")}
    assert {user for user in users if not user.startswith("proxy/bench/")} == {"proxy/cli.py"}


def test_importing_the_proxy_loads_no_torch_and_no_matplotlib() -> None:
    script = "import sys, proxy.cli, proxy.app; sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False, cwd=ROOT).returncode == 0


def test_the_triton_models_know_the_engine_alone() -> None:
    assert offenders("model_repository", "proxy", "tritonclient", "torch") == []


def test_nothing_that_serves_knows_how_the_voice_was_trained() -> None:
    found = [line for folder in ("engine_lib", "proxy", "model_repository") for line in offenders(folder, TRAINING)]
    assert [line for line in found if not line.startswith("engine_lib/training/")] == []


def test_talker_and_codec_never_meet() -> None:
    assert offenders("engine_lib/talker", "engine_lib.codec") == []
    assert offenders("engine_lib/codec", "engine_lib.talker") == []


@pytest.mark.parametrize("module", ["stream", "scheduler"])
def test_scheduling_knows_no_tensors(module: str) -> None:
    assert offenders(f"engine_lib/talker/{module}.py", "torch") == []


def tensors(model: str, section: str) -> dict[str, tuple[str, str, bool]]:
    """The tensors that a config.pbtxt declares: name -> type, dims, optional."""
    text = (ROOT / "model_repository" / model / "config.pbtxt").read_text(encoding="utf-8")
    block = re.search(rf"^{section} \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert block
    return {name: (kind, dims.strip(), bool(optional)) for name, kind, dims, optional in TENSOR.findall(block[1])}


def test_the_triton_files_declare_the_contract() -> None:
    text, number = ("STRING", "1"), ("INT32", "1")
    chunk = {wire.INDEX: number, wire.LAST: ("BOOL", "1"), wire.FINISH_REASON: text, wire.USAGE: ("INT32", "2")}
    frames = ("INT32", f"-1, {wire.CODEBOOKS}")
    codes = chunk | {wire.CODES: frames, wire.PRIMER: frames, wire.STREAM_ID: text}
    audio = chunk | {wire.PCM: ("INT16", "-1")}
    voice = {wire.X_VECTOR: ("FP32", "-1"), wire.REF_CODES: frames, wire.REF_TEXT: text}
    start = {wire.TEXT: text, wire.OPTIONS: text, wire.STREAM_ID: text, wire.ACTION: text} | voice

    def declared(model: str, section: str) -> dict[str, tuple[str, str]]:
        return {name: (kind, dims) for name, (kind, dims, _) in tensors(model, section).items()}

    assert declared("talker", "input") == start | {wire.SEQUENCE: number}
    assert declared("talker", "output") == codes | {wire.DESCRIPTION: text}
    assert declared("codec", "input") == codes
    assert declared("codec", "output") == declared("tts", "output") == audio
    assert declared("tts", "input") == start
    assert declared("voice", "input") == {wire.AUDIO: ("FP32", "-1"), wire.REF_TEXT: text}
    assert declared("voice", "output") == voice
    assert [name for name, (_, _, optional) in tensors("tts", "input").items() if not optional] == [wire.TEXT]
