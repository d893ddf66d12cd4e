"""Starts a step's kernel on a CUDA stream through the driver. The structures mirror those of the CUDA sources."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_float, c_int, c_uint, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_lib.codec.kernels.program import Attend, Carry, Convolve, Depthwise, Embed, Sound, Step
from engine_lib.codec.kernels.tiles import Shape, Tile, choose
from engine_lib.codec.kernels.weights import Weights

NORM, GELU, SWIGLU, SNAKE, FRESH = 1, 2, 4, 8, 16
MOST_CARRIED = 16
SOUND_COLUMNS, SOUND_THREADS = 256, 64
SOUND_SHARED = 12 * (56 * 4 + (SOUND_COLUMNS + 8) * 16)
KERNELS = (
    "conv_32_64", "conv_64_64", "conv_96_64", "conv_128_64", "conv_192_64", "conv_32_96", "conv_96_96",
    "unit_96_96", "embed", "attend", "depthwise", "sound", "carry",
)  # fmt: skip


def _structure(name: str, pointers: str, numbers: str, floats: str = "", last: str = "") -> type[Structure]:
    fields = [(field, c_void_p) for field in pointers.split()] + [(field, c_int) for field in numbers.split()]
    return type(name, (Structure,), {"_fields_": fields + [(field, c_float) for field in floats.split()]})


ConvArguments = _structure(
    "ConvArguments",
    "input input_state zeros weights bias then_weights then_bias then_rate then_gain residual wide raw output"
    " output_state rate gain row",
    "rows columns per_frame chunks taps dilation up outputs width tail blocks stages flags",
    "eps",
)
EmbedArguments = _structure(
    "EmbedArguments", "table codes output output_state row", "rows frames quantizers entries channels tail"
)
AttentionArguments = _structure(
    "AttentionArguments", "input output ring speed row", "rows frames heads layer layers window"
)
DepthwiseArguments = _structure(
    "DepthwiseArguments", "input input_state weights bias output row", "rows columns per_frame", "eps"
)
LastArguments = _structure(
    "LastArguments", "input input_state weights bias pcm wave row", "rows columns per_frame planes"
)


class CarryArguments(Structure):
    """See codec_stages.cuh."""

    _fields_ = (
        ("state", c_void_p * MOST_CARRIED), ("planes", c_int * MOST_CARRIED), ("tail", c_int * MOST_CARRIED),
        ("per_frame", c_int * MOST_CARRIED), ("row", c_void_p),
    )  # fmt: skip


SOURCE = "codec.cu"


def defines(number: str) -> dict[str, int]:
    """What SOURCE is compiled with for activations in `number`: float16 or bfloat16."""
    mirrors: dict[str, type[Structure]] = {
        "CONV": ConvArguments, "EMBED": EmbedArguments, "ATTENTION": AttentionArguments,
        "DEPTHWISE": DepthwiseArguments, "LAST": LastArguments, "CARRY": CarryArguments,
    }  # fmt: skip
    sizes = {f"{name}_BYTES": ctypes.sizeof(mirror) for name, mirror in mirrors.items()}
    return sizes | ({"HALF": 1} if number == "float16" else {})


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments."""

    kernel: str
    grid: tuple[int, int]
    threads: int
    shared: int
    arguments: Structure


@dataclass(frozen=True)
class Call:
    """What all steps of a call share: its size, and the tensors that change from call to call."""

    rows: int
    frames: int
    row: Tensor  # int32 [rows, 4]: slot, start, length, half
    codes: Tensor  # int32 [rows, frames, quantizers]
    pcm: Tensor  # int16 [rows * columns]
    wave: Tensor | None  # float32, the same
    zeros: Tensor  # 16-bit: the reach of any layer times 8


def launches(steps: list[Step], weights: Weights, ring: Tensor, call: Call) -> list[Launch]:
    """Every step's launch."""
    return [_launch(step, weights, ring, call) for step in steps]


def _launch(step: Step, weights: Weights, ring: Tensor, call: Call) -> Launch:
    config, row, rows, frames = weights.config, call.row.data_ptr(), call.rows, call.frames
    match step:
        case Embed():
            channels = config.codebook_dim
            sizes = config.quantizers, config.codebook_size, channels, step.state.tail
            at = _at(step.table, call.codes, step.output, step.state.numbers)
            return Launch("embed", (rows * frames, 1), channels // 4, 0, EmbedArguments(*at, row, rows, frames, *sizes))
        case Attend():
            sizes = config.heads, step.layer, config.layers, config.window
            at = _at(step.input, step.output, ring, weights.speed)
            return Launch("attend", (config.heads, rows), 128, 0, AttentionArguments(*at, row, rows, frames, *sizes))
        case Depthwise():
            columns = step.per_frame * frames
            at = _at(step.input, step.input_state.numbers, step.weights, step.bias, step.output)
            arguments = DepthwiseArguments(*at, row, rows, columns, step.per_frame, step.eps)
            return Launch("depthwise", (rows * columns, 1), step.weights.shape[1] // 8, 0, arguments)
        case Sound():
            columns = step.per_frame * frames
            at = _at(step.input, step.input_state.numbers, step.weights, step.bias, call.pcm, call.wave)
            arguments = LastArguments(*at, row, rows, columns, step.per_frame, step.weights.shape[0])
            return Launch("sound", (-(-columns // SOUND_COLUMNS), rows), SOUND_THREADS, SOUND_SHARED, arguments)
        case Carry():
            arguments = CarryArguments(row=row)
            for number, (state, per_frame) in enumerate(step.states):
                arguments.state[number] = state.numbers.data_ptr()
                arguments.planes[number] = state.numbers.shape[2]
                arguments.tail[number], arguments.per_frame[number] = state.tail, per_frame
            return Launch("carry", (len(step.states), rows), 256, 0, arguments)
        case Convolve():
            return convolution(step, call, choose(shape_of(step, rows, frames)))


def shape_of(step: Convolve, rows: int, frames: int) -> Shape:
    """The step's product as far as tiles go."""
    product = step.product
    return Shape(
        outputs=product.up * product.outputs,
        width=product.width,
        steps=product.taps * product.inputs // product.block,
        block=product.block,
        taps=product.taps,
        reach=(product.taps - 1) * product.dilation,
        rows=rows,
        columns=frames * step.per_frame,
        fused=step.then is not None,
    )


def convolution(step: Convolve, call: Call, tile: Tile) -> Launch:
    """A product's launch with a tile of one's choice."""
    product = step.product
    flags = (
        NORM * (step.norm_eps is not None) | GELU * step.gelu | SWIGLU * step.swiglu | SNAKE * (step.snake is not None)
        | FRESH * step.fresh
    )  # fmt: skip
    middle, second = step.then if step.then is not None else (None, None)
    state, kept = step.input_state, step.output_state
    arguments = ConvArguments(
        *_at(
            step.input,
            state.numbers if state else None,
            call.zeros,
            product.weights,
            second.bias if second else product.bias,
            second.weights if second else None,
            product.bias if second else None,
            middle.rate if middle else None,
            middle.gain if middle else None,
            step.residual,
            step.wide,
            step.raw,
            step.output,
            kept.numbers if kept else None,
            step.snake.rate if step.snake else None,
            step.snake.gain if step.snake else None,
            call.row,
        ),
        call.rows,
        call.frames * step.per_frame,
        step.per_frame,
        product.inputs // product.block,
        product.taps,
        product.dilation,
        product.up,
        product.outputs,
        product.width,
        kept.tail if kept else 0,
        tile.blocks,
        tile.stages,
        flags,
        step.norm_eps or 0.0,
    )
    kind = "unit" if second else "conv"
    return Launch(f"{kind}_{tile.width}_{product.block}", tile.grid, tile.threads, tile.shared, arguments)


def _at(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


class LaunchError(RuntimeError):
    """A call of the CUDA driver failed."""


class _Attribute(Structure):
    """CUlaunchAttribute with a whole number as its value."""

    _fields_ = (("id", c_int), ("pad", c_int), ("value", c_int), ("rest", c_int * 15))


class _Config(Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint), ("stream", c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)), ("count", c_uint),
    )  # fmt: skip


MAX_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class Module:
    """Compiled kernels, loaded on the current device."""

    def __init__(self, image: bytes) -> None:
        """Raises LaunchError when the image isn't for this GPU."""
        torch.cuda.current_stream()  # makes the device's context current on this thread
        self._driver = ctypes.CDLL("libcuda.so.1")
        module = c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), image), "loading the kernels")
        self._functions: dict[str, c_void_p] = {}
        most_shared = torch.cuda.get_device_properties().shared_memory_per_block_optin
        for name in KERNELS:
            function = c_void_p()
            self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), name)
            if name.startswith(("conv", "unit", "sound")):
                self._check(self._driver.cuFuncSetAttribute(function, MAX_SHARED, most_shared), name)
            self._functions[name] = function

    def start(self, launch: Launch, *, early: bool = False) -> None:
        """Put a launch on torch's current stream; `early`: it may begin while the launch before it, also ours, runs."""
        arguments = (c_void_p * 1)(ctypes.addressof(launch.arguments))
        attribute = _Attribute(EARLY, 0, int(early))
        across, down = launch.grid
        config = _Config(
            (c_uint * 3)(across, down, 1), (c_uint * 3)(launch.threads, 1, 1), launch.shared,
            torch.cuda.current_stream().cuda_stream, ctypes.pointer(attribute), 1,
        )  # fmt: skip
        status = self._driver.cuLaunchKernelEx(ctypes.byref(config), self._functions[launch.kernel], arguments, None)
        self._check(status, f"{launch.kernel}, grid {launch.grid}, {launch.threads} threads, {launch.shared} bytes")

    def start_all(self, launches: list[Launch]) -> None:
        """Put the launches of a call on torch's current stream, each but the first early."""
        for number, launch in enumerate(launches):
            self.start(launch, early=number > 0)

    def _check(self, status: int, what: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(status, ctypes.byref(text))
            raise LaunchError(f"CUDA: {(text.value or b'?').decode()} ({what})")
