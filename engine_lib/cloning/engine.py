"""Turns samples into voices, one after another on a thread of its own. Knows no Triton and no files of sound."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

from engine_lib.cloning.codec_encoder import CodecEncoder
from engine_lib.cloning.sample import Sample
from engine_lib.cloning.speaker_encoder import SpeakerEncoder
from engine_lib.errors import GenerationFailed, InvalidRequest, NotReady, Overloaded, ServiceError
from engine_lib.metrics import Samples
from engine_lib.voice import check_reference_text
from engine_lib.wire import AUDIO, MIN_SAMPLE_S, SAMPLE_RATE, Voice, sample_problem

log = logging.getLogger(__name__)

MAX_WAITING = 32  # samples; one more is refused


@dataclass
class Metrics:
    """Counts since the start. The engine's thread writes, any thread reads."""

    voices: int = 0
    failures: int = 0
    encode_s: Samples = field(default_factory=Samples)


class Engine:
    """Owns both encoders on one thread. Use it with `with`, or `close` it."""

    def __init__(self, speaker: SpeakerEncoder, encoder: CodecEncoder) -> None:
        self.metrics = Metrics()
        self._speaker, self._encoder = speaker, encoder
        self._device = speaker.window.device
        self._waiting: queue.Queue[Sample | None] = queue.Queue(MAX_WAITING)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="voice-engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_checkpoint(cls, directory: Path, device: torch.device) -> Engine:
        """An engine for a Base checkpoint. Raises ConfigurationError naming what doesn't fit."""
        speaker = SpeakerEncoder.from_directory(directory, device)
        engine = cls(speaker, CodecEncoder.from_directory(directory / "speech_tokenizer", device))
        if device.type == "cuda":  # the first run chooses algorithms, which takes a while
            engine.encode(np.zeros(MIN_SAMPLE_S * SAMPLE_RATE, np.float32), "warm-up")
        return engine

    def submit(self, sample: Sample) -> None:
        """Take in a sample. Raises InvalidRequest for one that no voice can be made of, Overloaded or NotReady."""
        if sample.audio.ndim != 1 or (problem := sample_problem(sample.audio)):
            problem = "must be one row of samples" if sample.audio.ndim != 1 else problem
            raise InvalidRequest(f"{AUDIO} {problem}.", param=AUDIO)
        if sample.text:
            check_reference_text(sample.text)
        if self._closing:
            raise NotReady("The voice engine is shutting down.")
        try:
            self._waiting.put_nowait(sample)
        except queue.Full:
            raise Overloaded("Too many voices are waiting to be made; try again in a moment.") from None

    def close(self) -> None:
        """Stop the thread; samples that still wait are answered with NotReady."""
        self._closing = True
        self._waiting.put(None)
        self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def encode(self, audio: npt.NDArray[np.float32], text: str) -> Voice:
        """The voice in `audio`. The x-vector alone takes a fraction of the time, so without text that is all."""
        # TF32 rounds a convolution's inputs to 11 bits, which is enough to choose other codes.
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            samples = torch.from_numpy(audio).to(self._device)
            x_vector = self._speaker(samples).cpu().numpy()
            if not text:
                return Voice(x_vector)
            return Voice(x_vector, self._encoder(samples).to("cpu", torch.int32).numpy(), text)

    def _run(self) -> None:
        while sample := self._waiting.get():
            if self._closing:
                sample.reply(NotReady("The voice engine is shutting down."))
                continue
            begin = time.monotonic()
            answer: Voice | ServiceError
            try:
                answer = self.encode(sample.audio, sample.text)
            # Whatever one sample broke, the next one must find the engine as it was.
            except Exception:
                log.exception("a sample of %d numbers could not be encoded", len(sample.audio))
                self.metrics.failures += 1
                answer = GenerationFailed("The speech engine failed on this sample.")
            else:
                self.metrics.voices += 1
                self.metrics.encode_s.observe(time.monotonic() - begin)
            sample.reply(answer)
