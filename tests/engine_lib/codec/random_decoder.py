"""Decoders of random weights in any size, every part of them at work, activations near unit size."""

from __future__ import annotations

import dataclasses
import math

import torch

from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.model import Decoder
from engine_lib.layers import fold

# The released decoder's sizes (model.md 1.1).
TRUE = DecoderConfig(
    codebook_size=2048, codebook_dim=512, quantizers=16, latent=1024, hidden=512, intermediate=1024, layers=8, heads=16,
    kv_heads=16, head_dim=64, window=72, rms_norm_eps=1e-5, rope_theta=10000.0, channels=1536,
    upsampling_ratios=(2, 2), upsample_rates=(8, 5, 4, 3),
)  # fmt: skip
SMALL = dataclasses.replace(
    TRUE, codebook_size=64, codebook_dim=64, latent=256, hidden=128, intermediate=192, layers=2, heads=2, kv_heads=2,
    channels=1024,
)  # fmt: skip


def random_decoder(config: DecoderConfig, seed: int = 0, device: str = "cpu") -> Decoder:
    """float32. Residual branches are small, as trained ones are, so that depth doesn't blow up the sum."""
    generator = torch.Generator(device).manual_seed(seed)
    with torch.device("meta"):
        decoder = Decoder(config)
    decoder = decoder.to_empty(device=device).eval().requires_grad_(False)
    for name, target in decoder.state_dict().items():
        noise = torch.randn(target.shape, generator=generator, device=device)
        if name.endswith("cluster_usage"):
            target.fill_(1)
        elif name.endswith(("norm.weight", "scale", "gamma")):
            target.copy_(1 + 0.1 * noise)
        elif name.endswith(("alpha", "beta", "bias")):
            target.copy_(0.1 * noise)
        elif "embedding" in name:
            target.copy_(noise / 4)
        elif ".block.1." in name or name.endswith(("0.0.conv.weight", "1.0.conv.weight")):  # transposed
            back = 2 if ".block.1." in name else 1
            target.copy_(noise / math.sqrt(target.shape[0] * back))
        else:
            gain = 0.3 if "conv2" in name or "down_proj" in name or "o_proj" in name or "pwconv2" in name else 1.0
            target.copy_(gain * noise / math.sqrt(math.prod(target.shape[1:])))
    last = decoder.decoder[-1].conv.weight
    last.mul_(0.03)  # samples are to stay within -1..1
    fold(decoder)
    return decoder
