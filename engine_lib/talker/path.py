"""Which way the talker computes on this device: the frame kernel, or plain torch operations, and why."""

from __future__ import annotations

import logging

import torch

from engine_lib.errors import ConfigurationError
from engine_lib.kernels.target import CompileError, LaunchError
from engine_lib.profile import Profile
from engine_lib.talker.model import Talker
from engine_lib.talker.runner import Runner
from engine_lib.talker.step import Steps

log = logging.getLogger(__name__)

ROW_TILE = {"cpu": 8, "cuda": 64}  # rows of one product, see runner.py; a GPU hardly notices idle ones


def choose_path(talker: Talker, profile: Profile) -> Steps:
    """The frame kernel where profile, model and device allow it. What prevents it is logged.

    Raises ConfigurationError when the device hasn't the memory for as many slots as the profile asks for.
    """
    try:
        return _path(talker, profile)
    except torch.OutOfMemoryError as error:
        slots = f"{profile.max_active} streams of {profile.slot_positions} positions"
        raise ConfigurationError(
            f"The device's memory doesn't hold {slots}: lower max_active or slot_positions. ({error})",
            param="max_active",
        ) from error


def _path(talker: Talker, profile: Profile) -> Steps:
    weight = talker.codec_head.weight

    def plain() -> Steps:
        row_tile = ROW_TILE[weight.device.type]
        return Runner(talker, profile.max_active, profile.slot_positions, row_tile, profile.prefix_positions)

    if weight.device.type == "cpu":
        return plain()
    if profile.talker_path == "plain":
        log.info("the talker runs in plain torch operations, as talker_path asks")
        return plain()
    # Here, so that a CPU's start doesn't wait for CUDA's bindings.
    from engine_lib.kernels.compile import default_cache
    from engine_lib.talker.frame_kernel import why_not
    from engine_lib.talker.kernel_runner import KernelRunner

    if reason := why_not(talker.config, weight.dtype, weight.device):
        log.warning("the talker runs in plain torch operations: %s", reason)
        return plain()
    try:
        return KernelRunner(
            talker, profile.max_active, profile.slot_positions, profile.prefix_positions, cache=default_cache()
        )
    except (CompileError, LaunchError) as error:
        log.warning("the talker runs in plain torch operations, because the frame kernel failed: %s", error)
        return plain()
