"""Files of sound for tests, made by real encoders."""

from __future__ import annotations

import io

import av
import numpy as np

RATE = 24_000


def tone(seconds: float, rate: int = RATE, hertz: float = 220.0) -> np.ndarray:
    """float32 [samples]."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples: np.ndarray, rate: int = RATE, container: str = "wav", codec: str = "pcm_f32le") -> bytes:
    """A file of float32 [samples], or [channels, samples]."""
    channels = np.atleast_2d(samples)
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(channels)]
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate, layout=layout)
        if not codec.startswith("pcm"):
            stream.bit_rate = 128_000
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(channels, np.float32), format="fltp", layout=layout)
        frame.sample_rate = rate
        resampler = av.AudioResampler(stream.format, stream.layout, rate, stream.frame_size or 1024)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(part))
        out.mux(stream.encode(None))
    return file.getvalue()
