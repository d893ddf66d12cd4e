"""Load compiled kernels and launch them on torch's current stream, by the CUDA driver's API."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cuda.bindings import driver
from numpy.typing import NDArray

from engine_lib.kernels.target import LaunchError


class Kernel:
    """One kernel with a single parameter, a struct passed by value, on a grid of blocks that all run at once."""

    def __init__(self, cubin: bytes, name: str, *, blocks: int, threads: int) -> None:
        """`cubin` also holds the int `shared_bytes`: the shared memory of a block. Raises LaunchError."""
        torch.cuda.current_stream()  # makes the context that the module is loaded into
        self._context = _checked(driver.cuCtxGetCurrent(), "find")
        self._module = _checked(driver.cuModuleLoadData(cubin), "load")
        self._function = _checked(driver.cuModuleGetFunction(self._module, name.encode()), "find")
        place, size = _checked(driver.cuModuleGetGlobal(self._module, b"shared_bytes"), "find")
        shared = np.zeros(1, np.int32)
        _checked(driver.cuMemcpyDtoH(shared.ctypes.data, place, size), "read")
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(self._function, limit, int(shared[0])), "size")
        self._config = driver.CUlaunchConfig()
        self._config.gridDimX, self._config.gridDimY, self._config.gridDimZ = blocks, 1, 1
        self._config.blockDimX, self._config.blockDimY, self._config.blockDimZ = threads, 1, 1
        self._config.sharedMemBytes = int(shared[0])
        together = driver.CUlaunchAttribute()
        together.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        together.value.cooperative = 1
        self._config.attrs, self._config.numAttrs = [together], 1

    def launch(self, params: NDArray[np.void]) -> None:
        """Start it with `params` (one record; copied before this returns). Raises LaunchError."""
        # This may be another thread than the one that loaded the kernel, and never have used CUDA.
        _checked(driver.cuCtxSetCurrent(self._context), "reach")
        pointers = np.array([params.ctypes.data], np.uint64)
        self._config.hStream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        _checked(driver.cuLaunchKernelEx(self._config, self._function, pointers.ctypes.data, 0), "launch")


def _checked(result: tuple[Any, ...], what: str) -> Any:
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"CUDA can't {what} a kernel: {error.name}")
    return values[0] if len(values) == 1 else tuple(values)
