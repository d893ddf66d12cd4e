"""CUDA sources to machine code by NVRTC, which comes with torch's wheels: without nvcc or a GPU. Results are cached."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cuda.bindings import nvrtc

from engine_lib.kernels.target import ARCHITECTURE, CompileError

SOURCES = Path(__file__).parent / "cuda"


def compiled(source: str, defines: Mapping[str, str | int], cache: Path | None = None) -> bytes:
    """The cubin of cuda/`source` with `defines`.

    Read from `cache` when the same sources were compiled by the same NVRTC before, else put there. Raises CompileError.
    """
    options = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++17", *(f"-D{k}={v}" for k, v in sorted(defines.items()))]
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir())}
    digest = hashlib.sha256(repr((source, options, files, _version())).encode()).hexdigest()
    kept = cache / f"{Path(source).stem}-{digest[:32]}.cubin" if cache is not None else None
    if kept is not None and kept.is_file():
        return kept.read_bytes()
    cubin = _compile(source, files, options)
    if kept is not None:
        _keep(kept, cubin)
    return cubin


def default_cache() -> Path:
    """Where compiled kernels are kept for the next start."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "qwen3-tts-triton" / "kernels"


def _keep(path: Path, cubin: bytes) -> None:
    """Write whole or not at all: two servers may start at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(cubin)
    os.replace(file.name, path)


def _version() -> tuple[int, int]:
    error, major, minor = nvrtc.nvrtcVersion()
    _check(error)
    return major, minor


def _compile(source: str, files: Mapping[str, str], options: Sequence[str]) -> bytes:
    headers = {name: text for name, text in files.items() if name != source}
    error, program = nvrtc.nvrtcCreateProgram(
        files[source].encode(),
        source.encode(),
        len(headers),
        [text.encode() for text in headers.values()],
        [name.encode() for name in headers],
    )
    _check(error)
    try:
        (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{source} doesn't compile with {' '.join(options)}:\n{_log(program)}")
        error, size = nvrtc.nvrtcGetCUBINSize(program)
        _check(error)
        cubin = bytearray(size)
        (error,) = nvrtc.nvrtcGetCUBIN(program, cubin)
        _check(error)
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(program: nvrtc.nvrtcProgram) -> str:
    error, size = nvrtc.nvrtcGetProgramLogSize(program)
    _check(error)
    log = bytearray(size)
    (error,) = nvrtc.nvrtcGetProgramLog(program, log)
    _check(error)
    return log.rstrip(b"\0").decode(errors="replace")


def _check(error: nvrtc.nvrtcResult) -> None:
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC failed: {error.name}")
