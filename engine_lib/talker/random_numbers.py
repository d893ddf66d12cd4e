"""Random numbers addressed by (seed, frame, codebook), so that no draw depends on what else runs.

The mixing function is SplitMix64's finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014), applied once to the seed and once to the address under it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine_lib.wire import CODEBOOKS

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_CODEBOOKS = np.arange(CODEBOOKS, dtype=np.uint64)


def uniforms(seeds: NDArray[np.uint64], frames: NDArray[np.int64]) -> NDArray[np.float32]:
    """Numbers in [0, 1) with 24 random bits for every codebook of each row's frame: [rows], [rows] -> [rows, 16]."""
    address = frames.astype(np.uint64)[:, None] * np.uint64(CODEBOOKS) + _CODEBOOKS
    mixed = _mix(_mix(seeds + _GAMMA)[:, None] + (address + np.uint64(1)) * _GAMMA)
    return (mixed >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
