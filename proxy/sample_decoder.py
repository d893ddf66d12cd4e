"""A child process that turns a file of sound into samples: bytes on standard input, float32 mono on standard output.

FFmpeg's parsers see what strangers send, so they run where they can do no harm: in a process of their own that can open
no file and no socket, with little memory and time. Run by samples.py, with the sample rate and the longest duration in
seconds as arguments. Imports nothing of ours: it starts for every sample.
"""

from __future__ import annotations

import io
import resource
import sys
import wave
from typing import Any

import av
import numpy as np
import numpy.typing as npt

UNREADABLE, TOO_LONG, NO_SOUND, CUT_OFF = 10, 11, 12, 13  # exit codes

# Files of one sound. Not those that name other files or addresses (playlists, manifests), nor pictures.
CONTAINERS = (
    "3g2,3gp,aac,ac3,aiff,amr,ape,asf,au,avi,caf,dts,eac3,flac,flv,gsm,ircam,m4a,matroska,mov,mp3,mp4,mpc,mpc8,mpegts,"
    "nistsphere,ogg,opus,rm,tak,tta,voc,w64,wav,webm,wsaud,wv"
)
OPTIONS = {"format_whitelist": CONTAINERS, "protocol_whitelist": "none"}
# Tags that aren't UTF-8 are no reason to refuse a file. PyAV 19, which Python 3.12 gets, needs no telling and no longer
# takes the argument.
LENIENT: dict[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}

MEMORY_BYTES = 1 << 30
CPU_S = 10
BAD_PACKETS = 0.02  # of a file's packets may be broken: a tag at the end, a first frame without its past
UNKNOWN_SIZE = 0xFFFFFFFF  # what a WAV says that was written while its end wasn't known
SHORT = 0.9  # a file that holds less than this part of what it says it holds was cut off


def confine() -> None:
    """Take from this process what it doesn't need to decode."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))  # standard streams, and nothing else from now on


def decode(data: bytes, rate: int, longest_s: float) -> npt.NDArray[np.float32]:
    """The first sound in a file as float32 [samples], the mean of its channels. Ends the process when there is none."""
    try:
        with av.open(io.BytesIO(data), "r", container_options=OPTIONS, **LENIENT) as container:
            if not container.streams.audio:
                sys.exit(NO_SOUND)
            stream = container.streams.audio[0]
            stream.codec_context.thread_count = 1
            samples = _read(container, stream, rate, longest_s)
            declared_s = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
    except (av.FFmpegError, ValueError):
        sys.exit(UNREADABLE)
    if len(samples) / rate < SHORT * declared_s or len(data) < SHORT * _declared_bytes(data):
        sys.exit(CUT_OFF)
    return samples


def _declared_bytes(data: bytes) -> int:
    """How large a RIFF file says it is, which FFmpeg doesn't check; 0 where it doesn't say."""
    size = int.from_bytes(data[4:8], "little") if data[:4] == b"RIFF" else 0
    return 0 if size == UNKNOWN_SIZE else size


def _read(
    container: av.container.InputContainer, stream: av.AudioStream, rate: int, longest_s: float
) -> npt.NDArray[np.float32]:
    resampler = av.AudioResampler(format="fltp", rate=rate)
    pieces: list[npt.NDArray[np.float32]] = []
    count = packets = bad = 0
    for packet in container.demux(stream):
        packets += 1
        try:
            frames = packet.decode()
        except av.InvalidDataError:
            bad += 1
            continue
        for frame in frames:
            frame.pts = None  # gaps and jumps of a broken clock mean nothing here
            for part in resampler.resample(frame):
                pieces.append(part.to_ndarray().mean(axis=0))
                count += len(pieces[-1])
        if count > longest_s * rate:
            sys.exit(TOO_LONG)
    if bad > max(1, BAD_PACKETS * packets):
        sys.exit(UNREADABLE)
    if pieces:
        pieces += [part.to_ndarray().mean(axis=0) for part in resampler.resample(None)]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def _rehearse() -> None:
    """Decode something once: PyAV imports parts of itself only when it needs them, which is too late once confined."""
    with io.BytesIO() as file:
        with wave.open(file, "wb") as writer:
            writer.setnchannels(2)
            writer.setsampwidth(2)
            writer.setframerate(8000)
            writer.writeframes(bytes(4000))
        decode(file.getvalue(), 16_000, 1.0)


if __name__ == "__main__":
    av.logging.set_level(av.logging.PANIC)
    sent = sys.stdin.buffer.read()
    _rehearse()
    confine()
    sys.stdout.buffer.write(decode(sent, int(sys.argv[1]), float(sys.argv[2])).astype("<f4").tobytes())
