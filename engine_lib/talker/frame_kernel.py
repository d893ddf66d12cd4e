"""The frame kernel's host side: its state on the device, its parameters, its launches. Knows no streams."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_lib.kernels.compile import compiled
from engine_lib.kernels.launch import Kernel
from engine_lib.kernels.target import misfit
from engine_lib.talker.config import SUPPRESSED_TAIL, TalkerConfig
from engine_lib.talker.frame_weights import BLOCKS, FrameWeights
from engine_lib.wire import CODEBOOKS

MOST_COLUMNS = 32
FED_BACK = -2  # a column's code: the stream's own latest frame
FIRST_FRAME, MAY_END, GREEDY, SUB_GREEDY = 1, 2, 4, 8  # Row.flags
SPAN = 256  # cache positions of one unit of attention
THREADS = 256
TILES = ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4))  # of eight columns: talker's, predictor's
LAUNCHES_BEFORE_CLEAR = 2**22  # some 600 tags a launch: well before 32 bits are used up
HEADS, KV_HEADS, HEAD_DIM = 16, 8, 128

COLUMN = np.dtype(
    [("side", np.uint64)]
    + [(name, np.int32) for name in ("slot", "position", "first", "base", "text", "code", "units", "unused")]
)
ROW = np.dtype(
    [
        ("seed", np.uint64),
        ("frame", np.int32),
        ("flags", np.int32),
        ("inverse_temperature", np.float32),
        ("top_p", np.float32),
        ("penalty", np.float32),
        ("top_k", np.int32),
        ("sub_inverse_temperature", np.float32),
        ("sub_top_p", np.float32),
        ("sub_top_k", np.int32),
        ("unused", np.int32),
    ]
)
POINTERS = (
    "schedule", "q_norm", "k_norm", "p_q_norm", "p_k_norm", "p_bias", "rotations", "p_rotations", "keys", "values",
    "p_memory", "text", "first_codes", "other_codes", "p_first_codes", "p_other_codes", "latest", "seen", "out",
    "epoch", "failed", "qkv", "parts", "logits", "p_qkv", "p_logits", "x", "xa", "h", "a", "p_x", "p_xa", "p_h", "p_a",
    "seen_logits", "p_seen_logits",
)  # fmt: skip
NUMBERS = ("columns", "rows", "slots", "positions", "end_of_speech", "zero")
PARAMS = np.dtype(
    [(name, np.uint64) for name in POINTERS]
    + [(name, np.int32) for name in NUMBERS]
    + [("column", COLUMN, MOST_COLUMNS), ("row", ROW, MOST_COLUMNS)],
    align=True,
)


class KernelFailed(RuntimeError):
    """The kernel's blocks lost touch with each other; what it wrote means nothing."""


def why_not(config: TalkerConfig, dtype: torch.dtype, device: torch.device) -> str:
    """Why the frame kernel can't run this model here; empty when it can."""
    if reason := misfit(device):
        return reason
    if torch.cuda.get_device_properties(device).multi_processor_count < BLOCKS:
        return f"the device has fewer than {BLOCKS} multiprocessors"
    if dtype != torch.bfloat16:
        return f"the talker computes in {str(dtype).removeprefix('torch.')}"
    talker, small = config.talker, config.predictor
    fits = (
        all((s.heads, s.kv_heads, s.head_dim) == (HEADS, KV_HEADS, HEAD_DIM) for s in (talker, small))
        and talker.rms_norm_eps == small.rms_norm_eps
        and talker.hidden in (1024, 2048)
        and talker.intermediate == 3 * talker.hidden
        and talker.vocabulary == 3072
        and (small.hidden, small.intermediate, small.layers, small.vocabulary) == (1024, 3072, 5, 2048)
    )
    return "" if fits else "the model's sizes are neither those of 1.7B nor of 0.6B"


def defines(config: TalkerConfig, positions: int, tiles: tuple[int, int]) -> dict[str, str | int]:
    """The sizes that frame.cu is compiled for."""
    return {
        "HIDDEN": config.talker.hidden,
        "INTERMEDIATE": config.talker.intermediate,
        "LAYERS": config.talker.layers,
        "EPS": f"{config.talker.rms_norm_eps}f",
        "SPAN": SPAN,
        "MOST_SPANS": -(-positions // SPAN),
        "PARAMS_BYTES": PARAMS.itemsize,
        "TALKER_TILES": tiles[0],
        "PREDICTOR_TILES": tiles[1],
    }


@dataclass(frozen=True)
class Launched:
    """A launch on its way: `codes` [rows, 16] are there when `done`."""

    codes: NDArray[np.int32]
    failed: NDArray[np.int32]
    begun: torch.cuda.Event
    done: torch.cuda.Event

    def wait(self) -> NDArray[np.int32]:
        """The codes, once they are made. Raises KernelFailed."""
        self.done.synchronize()
        if self.failed[0]:
            raise KernelFailed("The frame kernel's blocks lost touch with each other.")
        return self.codes


class FrameKernel:
    """Slots on the device and a kernel for every size of batch."""

    def __init__(
        self,
        config: TalkerConfig,
        weights: FrameWeights,
        slots: int,
        positions: int,
        *,
        cache: Path | None = None,
        extra: dict[str, str | int] | None = None,
    ) -> None:
        """`extra`: further -D of the source, for tests. Raises CompileError, LaunchError."""
        talker, small = config.talker, config.predictor
        self._weights = weights
        self.device = weights.frame_schedule.device
        with ThreadPoolExecutor() as pool:
            jobs = {
                tiles: pool.submit(compiled, "frame.cu", defines(config, positions, tiles) | (extra or {}), cache)
                for tiles in TILES
            }
        self._kernels = {
            tiles: Kernel(job.result(), "frame", blocks=BLOCKS, threads=256) for tiles, job in jobs.items()
        }
        n = MOST_COLUMNS
        qkv = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        words = {
            "qkv": qkv * n, "p_qkv": qkv * n, "parts": n * HEADS * -(-positions // SPAN) * (HEAD_DIM + 2),
            "logits": talker.vocabulary * n, "p_logits": 2 * small.vocabulary * n,
        }  # fmt: skip
        inputs = {
            "x": talker.hidden * n, "xa": talker.hidden * n, "h": talker.intermediate * n, "a": HEADS * HEAD_DIM * n,
            "p_x": 2 * small.hidden * n, "p_xa": small.hidden * n, "p_h": small.intermediate * n,
            "p_a": HEADS * HEAD_DIM * n,
        }  # fmt: skip
        self._words = {name: self._zeros(count, torch.int64) for name, count in words.items()}
        self._inputs = self._zeros(sum(inputs.values()), torch.int32)
        ends = list(itertools.accumulate(inputs.values()))
        parts = {name: self._inputs[end - inputs[name] : end] for name, end in zip(inputs, ends, strict=True)}
        kept = (talker.layers, slots, KV_HEADS, positions, HEAD_DIM)
        self.keys, self.values = self._zeros(kept, torch.bfloat16), self._zeros(kept, torch.bfloat16)
        self.latest = self._zeros((slots, CODEBOOKS), torch.int32)  # codes of every slot's latest frame
        self.seen = self._zeros((slots, talker.vocabulary), torch.uint8)  # first codes that a slot's stream has had
        self._state = {
            "keys": self.keys,
            "values": self.values,
            "p_memory": self._zeros((small.layers, n * HEADS, CODEBOOKS, 2, HEAD_DIM), torch.bfloat16),
            "latest": self.latest,
            "seen": self.seen,
            "epoch": self._zeros(1, torch.int32),
        }
        self._failed = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        rooms = 2 * (slots // n + 5)  # for the launches of two steps
        self._rooms = [torch.zeros((n, CODEBOOKS), dtype=torch.int32, pin_memory=True) for _ in range(rooms)]
        self._params = np.zeros(1, PARAMS)
        for name, tensor in {**weights.tensors, **self._words, **parts, **self._state}.items():
            self._params[name] = tensor.data_ptr()
        self._params["failed"] = self._failed.data_ptr()
        self._params["slots"], self._params["positions"] = slots, positions
        self._params["end_of_speech"] = config.ids.codec_eos
        assert config.talker.vocabulary - SUPPRESSED_TAIL == small.vocabulary
        self._launches = 0
        torch.cuda.synchronize(self.device)

    def launch(
        self, columns: NDArray[np.void], rows: NDArray[np.void], logits: tuple[Tensor, Tensor] | None = None
    ) -> Launched:
        """Run `columns` (COLUMN; `units` is filled in here), of which the first len(rows) sample by `rows` (ROW).

        The result's place on the host is used again when as many launches followed as two steps can have.
        `logits`: float32 [rows, vocabulary] and [15, rows, codes] that get the logits, for tests.
        """
        count, sampling = len(columns), len(rows)
        assert sampling <= count <= MOST_COLUMNS
        if self._failed[0] or self._launches % LAUNCHES_BEFORE_CLEAR == LAUNCHES_BEFORE_CLEAR - 1:
            self.clear()
        units = (columns["position"] // SPAN + 1) * KV_HEADS
        columns["units"] = np.cumsum(units) - units
        params, room = self._params, self._rooms[self._launches % len(self._rooms)]
        params["columns"], params["rows"] = count, sampling
        params["column"][0, :count], params["row"][0, :sampling] = columns, rows
        params["schedule"] = (self._weights.frame_schedule if sampling else self._weights.prompt_schedule).data_ptr()
        params["out"] = room.data_ptr()
        params["seen_logits"], params["p_seen_logits"] = [t.data_ptr() for t in logits] if logits else (0, 0)
        begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begun.record()
        self._inputs.fill_(-1)  # protocol.cuh: nothing of the launch before may be taken for this one's
        self._kernels[tiles_for(count, sampling)].launch(params)
        self._launches += 1
        done.record()
        return Launched(room.numpy()[:sampling], self._failed.numpy(), begun, done)

    def clear(self) -> None:
        """Forget all that blocks ever told each other: tags may start again."""
        torch.cuda.synchronize(self.device)
        self._failed.zero_()
        for tensor in (*self._words.values(), self._state["epoch"]):
            tensor.zero_()
        torch.cuda.synchronize(self.device)
        self._launches += 1

    @torch.inference_mode()
    def voice_embedding(self, x_vector: NDArray[np.float32], codes: NDArray[np.int32]) -> Tensor:
        """As Talker.voice_embedding: x-vector [hidden], frames [n, 16] -> [1 + n, hidden]."""
        tables = self._weights.tensors
        ids = torch.from_numpy(codes).to(self.device, torch.long)
        frames = tables["first_codes"][ids[:, 0]]
        for group, table in enumerate(tables["other_codes"], start=1):
            frames = frames + table[ids[:, group]]
        return torch.cat((torch.from_numpy(x_vector).to(frames)[None], frames))

    def bytes(self) -> int:
        """Memory of all slots' keys and values."""
        return 2 * self.keys.numel() * self.keys.element_size()

    def _zeros(self, shape: int | tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)


def tiles_for(columns: int, rows: int) -> tuple[int, int]:
    """The smallest variant that holds so many columns and rows."""
    return min((t, p) for t, p in TILES if t * 8 >= columns and p * 8 >= rows)
