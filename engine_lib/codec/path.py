"""Chooses how the codec decodes: by our kernels where they run, else by the plain decoder; the log says which."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from engine_lib.codec.kernels.fit import misfit
from engine_lib.codec.kernels.launch import SOURCE, Module, defines
from engine_lib.codec.kernels.runner import KernelRunner
from engine_lib.codec.kernels.weights import weights_of
from engine_lib.codec.model import Decoder
from engine_lib.codec.runner import Runner
from engine_lib.kernels.target import CompileError, LaunchError
from engine_lib.profile import Profile

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FAST = "float16"  # what `auto` is for the kernels: an eighth of bfloat16's error at the same speed


def make_runner(directory: Path, profile: Profile, device: torch.device) -> Runner | KernelRunner:
    """A runner for the decoder in `directory`, with room for the profile's streams.

    Raises ConfigurationError naming any key or tensor that doesn't fit.
    """
    # Twice the streams that speak at once: one that has spoken may still have chunks here when the next one starts.
    slots = max(2 * profile.max_active, profile.codec_rows)
    decoder = Decoder.from_directory(directory, torch.float32, device)
    reason = misfit(decoder.config, device) if profile.codec_dtype != "float32" else "the profile asks for float32"
    if reason is None:
        number = FAST if profile.codec_dtype == "auto" else profile.codec_dtype
        try:
            module = load_kernels(number)
        except (CompileError, LaunchError) as error:
            logger.warning("The codec's kernels can't be had, so the plain decoder stands in: %s", error)
        else:
            weights = weights_of(decoder, DTYPES[number])
            logger.info("Codec: kernels in %s on %s", number, device)
            return KernelRunner(weights, module, slots, profile.codec_rows, primed=profile.codec_voice_cache)
    else:
        logger.info("Codec: plain decoder on %s (%s)", device, reason)
    dtype = DTYPES["float32" if profile.codec_dtype == "auto" else profile.codec_dtype]
    return Runner(decoder.to(dtype), slots, primed=profile.codec_voice_cache)


def load_kernels(number: str) -> Module:
    """The kernels for activations in `number`, compiled at the first start. Raises CompileError and LaunchError."""
    # Here, so that a CPU's start doesn't wait for CUDA's bindings.
    from engine_lib.kernels.compile import compiled, default_cache

    return Module(compiled(SOURCE, defines(number), default_cache()))
