"""From the engine's PCM to the bytes a client asked for, piece by piece. Knows sound; knows nothing of HTTP or Triton.

    PCM at 24 kHz -> Reshaper (speed, sample rate) -> Encoder (one container for the whole response) -> bytes

Every object here belongs to one response and is fed in order. Whatever the pieces' sizes, the sound is the same.
"""

from __future__ import annotations

import fractions
import io
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import av
import av.filter
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream

from engine_lib.wire import SAMPLE_RATE
from proxy.mp3_head import info_frame
from proxy.schemas import Format

Pcm = npt.NDArray[np.int16]  # [samples]
SILENCE: Pcm = np.zeros(0, np.int16)
UNKNOWN_SIZE = 0xFFFFFFFF  # what a WAV header says while the end isn't known
CONTENT_TYPES: dict[Format, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


class Encoder(Protocol):
    """One container's bytes. With `whole` they may all come from `finish`, with true sizes in the header."""

    def feed(self, pcm: Pcm) -> bytes: ...

    def finish(self) -> bytes: ...


class Audio:
    """The sound of one response, as bytes."""

    def __init__(self, form: Format, *, speed: float, sample_rate: int, whole: bool) -> None:
        # Opus decodes at 48 kHz, whatever its encoder was given.
        self.sample_rate = 48_000 if form == "opus" else sample_rate  # Hz, of what the client hears
        self.content_type = CONTENT_TYPES[form]
        self.cheap = form in ("wav", "pcm") and speed == 1 and self.sample_rate == SAMPLE_RATE  # a copy, no computing
        self._fed = False
        self._samples = 0
        self._reshaper = None if speed == 1 and self.sample_rate == SAMPLE_RATE else Reshaper(speed, self.sample_rate)
        self._encoder = _encoder(form, self.sample_rate, whole=whole)

    @property
    def seconds(self) -> float:
        """How long what was fed so far sounds."""
        return self._samples / self.sample_rate

    @property
    def empty(self) -> bool:
        """Whether no sample was fed yet."""
        return not self._fed

    def feed(self, pcm: Pcm) -> bytes:
        """The bytes that are ready once `pcm` is known; may be none yet."""
        self._fed = self._fed or len(pcm) > 0
        return self._encode(self._reshaper.feed(pcm) if self._reshaper else pcm)

    def finish(self) -> bytes:
        """The rest."""
        rest = self._encode(self._reshaper.finish()) if self._reshaper else b""
        return rest + self._encoder.finish()

    def _encode(self, pcm: Pcm) -> bytes:
        self._samples += len(pcm)
        return self._encoder.feed(pcm) if len(pcm) else b""


class Reshaper:
    """Another speed at the same pitch, and another sample rate."""

    def __init__(self, speed: float, sample_rate: int) -> None:
        self._next = 0  # sample
        graph = av.filter.Graph()
        filters = [
            graph.add_abuffer(
                sample_rate=SAMPLE_RATE, format="s16", layout="mono", time_base=fractions.Fraction(1, SAMPLE_RATE)
            )
        ]
        filters += [graph.add("atempo", repr(factor)) for factor in _tempo_factors(speed)]
        if sample_rate != SAMPLE_RATE:
            filters.append(graph.add("aresample", str(sample_rate)))
        filters.append(graph.add("aformat", "sample_fmts=s16:channel_layouts=mono"))
        filters.append(graph.add("abuffersink"))
        graph.link_nodes(*filters).configure()
        self._graph = graph

    def feed(self, pcm: Pcm) -> Pcm:
        """The samples that are ready once `pcm` is known."""
        if len(pcm) == 0:
            return SILENCE
        self._graph.push(_frame(pcm, SAMPLE_RATE, self._next))
        self._next += len(pcm)
        return self._ready()

    def finish(self) -> Pcm:
        """The rest."""
        self._graph.push(None)
        return self._ready()

    def _ready(self) -> Pcm:
        return np.concatenate([SILENCE, *self._pull()])

    def _pull(self) -> Iterator[Pcm]:
        while True:
            try:
                frame = cast(av.AudioFrame, self._graph.pull())
            except (av.BlockingIOError, av.EOFError):  # how FFmpeg says: feed me, and: that was all
                return
            yield cast(Pcm, frame.to_ndarray()[0])


def _tempo_factors(speed: float) -> list[float]:
    """`speed` as a product of factors from 0.5 to 2: beyond, FFmpeg drops sound instead of blending it."""
    if speed == 1:
        return []
    steps = max(1, math.ceil(abs(math.log2(speed))))
    return [speed ** (1 / steps)] * steps


def _frame(pcm: Pcm, sample_rate: int, start: int) -> av.AudioFrame:
    """An FFmpeg frame of samples that begin at sample `start`."""
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(pcm)[None], format="s16", layout="mono")
    frame.sample_rate = sample_rate
    frame.pts = start
    frame.time_base = fractions.Fraction(1, sample_rate)
    return frame


class PcmEncoder:
    """Plain samples."""

    def feed(self, pcm: Pcm) -> bytes:
        return pcm.astype("<i2", copy=False).tobytes()

    def finish(self) -> bytes:
        return b""


class WavEncoder:
    """One header, then plain samples."""

    def __init__(self, sample_rate: int, *, whole: bool) -> None:
        self._sample_rate = sample_rate
        self._samples: list[bytes] | None = [] if whole else None
        self._begun = False

    def feed(self, pcm: Pcm) -> bytes:
        data = pcm.astype("<i2", copy=False).tobytes()
        if self._samples is not None:
            self._samples.append(data)
            return b""
        if self._begun:
            return data
        self._begun = True
        return wav_header(self._sample_rate, None) + data

    def finish(self) -> bytes:
        if self._samples is None:
            return b""
        data = b"".join(self._samples)
        return wav_header(self._sample_rate, len(data)) + data


def wav_header(sample_rate: int, size: int | None) -> bytes:
    """The 44 bytes before mono 16-bit samples of `size` bytes; None: the end isn't known yet."""
    riff, data = (UNKNOWN_SIZE, UNKNOWN_SIZE) if size is None else (36 + size, size)
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16, b"data", data,
    )  # fmt: skip


@dataclass(frozen=True)
class _Recipe:
    """How FFmpeg writes a format so that each packet leaves at once."""

    container: str
    codec: str
    options: dict[str, str]  # of the container
    streamed: dict[str, str]  # more of them, when its head can't be mended at the end
    codec_options: dict[str, str]


_RECIPES: dict[Format, _Recipe] = {
    # FFmpeg's own first frame says the length, which isn't known when it streams; Mp3Stream writes another one.
    "mp3": _Recipe("mp3", "libmp3lame", {"id3v2_version": "0"}, {"write_xing": "0"}, {}),
    # A page per frame of speech, not per second.
    "opus": _Recipe("ogg", "libopus", {"page_duration": "80000"}, {}, {}),
    "aac": _Recipe("adts", "aac", {}, {}, {}),
    # From level 3 on a block takes 105 ms instead of 27.
    "flac": _Recipe("flac", "flac", {}, {}, {"compression_level": "2"}),
}


class _Drain:
    """A file for FFmpeg that can't seek, and from which what was written is taken away."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


class FfmpegEncoder:
    """A compressed format through FFmpeg."""

    def __init__(self, form: Format, sample_rate: int, *, whole: bool) -> None:
        recipe = _RECIPES[form]
        self._sample_rate = sample_rate
        self._next = 0  # sample
        self._whole = io.BytesIO() if whole else None
        self._drain = _Drain()
        self._container = av.open(
            self._drain if self._whole is None else self._whole,
            "w",
            format=recipe.container,
            options={"flush_packets": "1", **recipe.options, **({} if whole else recipe.streamed)},
        )
        stream = self._container.add_stream(recipe.codec, rate=sample_rate, options=recipe.codec_options)
        self._stream = cast(AudioStream, stream)
        self._stream.codec_context.layout = "mono"
        if form != "flac":
            self._stream.codec_context.bit_rate = 64_000 if sample_rate >= 16_000 else 32_000

    def feed(self, pcm: Pcm) -> bytes:
        self._container.mux(self._stream.encode(_frame(pcm, self._sample_rate, self._next)))
        self._next += len(pcm)
        return self._drain.take()

    def finish(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._whole.getvalue() if self._whole else self._drain.take()


class Mp3Stream:
    """An MP3 of unknown length that begins where the sound does."""

    def __init__(self, sample_rate: int) -> None:
        self._encoder = FfmpegEncoder("mp3", sample_rate, whole=False)
        self._begun = False

    def feed(self, pcm: Pcm) -> bytes:
        return self._headed(self._encoder.feed(pcm))

    def finish(self) -> bytes:
        return self._headed(self._encoder.finish())

    def _headed(self, frames: bytes) -> bytes:
        if self._begun or not frames:
            return frames
        self._begun = True
        return info_frame(frames) + frames


def _encoder(form: Format, sample_rate: int, *, whole: bool) -> Encoder:
    if form == "pcm":
        return PcmEncoder()
    if form == "wav":
        return WavEncoder(sample_rate, whole=whole)
    if form == "mp3" and not whole:
        return Mp3Stream(sample_rate)
    return FfmpegEncoder(form, sample_rate, whole=whole)
