"""What the kernels take for granted, of the GPU and of the decoder's sizes. Everything else takes the plain path."""

from __future__ import annotations

import torch

from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.kernels.program import RING
from engine_lib.codec.kernels.runner import FRAMES
from engine_lib.kernels import target

HEAD = 64  # codec_stages.cuh: attend
MOST_SEEN = 96  # frames that attend holds: window - 1 and a call's
MOST_LAST = 96  # channels of the last convolution


def misfit(config: DecoderConfig, device: torch.device) -> str | None:
    """Why the kernels can't run this decoder on `device`; None: they can."""
    return target.misfit(device) or unfit_size(config)


def unfit_size(config: DecoderConfig) -> str | None:
    """Which of the decoder's sizes the kernels can't do; None: all fit."""
    if config.head_dim != HEAD or config.kv_heads != config.heads:
        return f"the kernels' attention has heads of {HEAD} numbers with keys of their own"
    if config.window - 1 + FRAMES[-1] > min(MOST_SEEN, RING):
        return f"the kernels' attention can't look back {config.window} frames"
    if config.latent % 256:
        return f"the kernels' upsampling needs channels in steps of 256, not {config.latent}"
    inputs = [config.codebook_dim, config.hidden, config.intermediate, config.latent]
    blocks = [config.channels >> halvings for halvings in range(len(config.upsample_rates) + 1)]
    for size in (*inputs, *blocks):
        if size % 64 and size != 96:
            return f"the kernels' products need sizes in steps of 64 (or 96), not {size}"
    if blocks[-1] > MOST_LAST:
        return f"the kernels' last convolution has {MOST_LAST} channels at most, not {blocks[-1]}"
    return None
