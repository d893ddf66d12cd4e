"""What our kernels are built for, and how they say that they can't be had. Loads no CUDA bindings."""

from __future__ import annotations

import torch

from engine_lib.errors import ConfigurationError

ARCHITECTURE = "sm_90a"
HOPPER = (9, 0)


class CompileError(ConfigurationError):
    """NVRTC refused a source; the message is its log."""


class LaunchError(RuntimeError):
    """The driver refused to load or to launch a kernel; the message says what and why."""


def misfit(device: torch.device) -> str | None:
    """Why no kernel of ours can run on `device`; None: they can."""
    if device.type != "cuda":
        return "the kernels need a CUDA GPU"
    found = torch.cuda.get_device_capability(device)
    if found != HOPPER:
        return f"the kernels are for compute capability 9.0, this GPU has {found[0]}.{found[1]}"
    return None
