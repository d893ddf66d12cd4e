"""Cloned voices: whether one fits the checkpoint, and a shelf that remembers the latest by name. Knows no torch."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from engine_lib.errors import InvalidRequest
from engine_lib.wire import (
    CODEBOOKS,
    MAX_REF_CHARACTERS,
    MAX_SAMPLE_S,
    REF_CODES,
    REF_TEXT,
    SAMPLE_RATE,
    SAMPLES_PER_FRAME,
    X_VECTOR,
    Voice,
    check_text,
)

MAX_FRAMES = MAX_SAMPLE_S * SAMPLE_RATE // SAMPLES_PER_FRAME + 1


def check_voice(voice: Voice, *, size: int, first_codes: int, other_codes: int) -> Voice:
    """`voice`, or InvalidRequest naming the tensor that doesn't fit the checkpoint.

    `size` is an x-vector's; codes of the first codebook are below `first_codes`, the others below `other_codes`.
    """
    if voice.x_vector.shape != (size,):
        raise InvalidRequest(f"{X_VECTOR} must have {size} numbers, not {voice.x_vector.size}.", param=X_VECTOR)
    if not np.isfinite(voice.x_vector).all():
        raise InvalidRequest(f"{X_VECTOR} must hold finite numbers.", param=X_VECTOR)
    codes = voice.codes
    if codes.ndim != 2 or codes.shape[1] != CODEBOOKS or len(codes) > MAX_FRAMES:
        raise InvalidRequest(f"{REF_CODES} must be at most {MAX_FRAMES} frames of {CODEBOOKS}.", param=REF_CODES)
    if len(codes) and not (codes.min() >= 0 and codes[:, 0].max() < first_codes and codes.max() < other_codes):
        raise InvalidRequest(f"{REF_CODES} holds codes that this model doesn't know.", param=REF_CODES)
    if bool(len(codes)) != bool(voice.text):
        raise InvalidRequest(f"{REF_CODES} and {REF_TEXT} belong together.", param=REF_TEXT)
    if voice.text:
        check_reference_text(voice.text)
    return voice


def check_reference_text(text: str) -> None:
    """Raise InvalidRequest when no sample can be saying `text`."""
    if len(text) > MAX_REF_CHARACTERS:
        raise InvalidRequest(
            f"{REF_TEXT} is over {MAX_REF_CHARACTERS} characters.", param=REF_TEXT, code="input_too_large"
        )
    check_text(text, param=REF_TEXT)


class Shelf:
    """The `most` voices that were last used, by name. Not thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._voices: OrderedDict[str, Voice] = OrderedDict()

    def __len__(self) -> int:
        return len(self._voices)

    def put(self, name: str, voice: Voice) -> None:
        """Remember `voice`, in place of another of that name."""
        self._voices[name] = voice
        self._voices.move_to_end(name)
        if len(self._voices) > self._most:
            self._voices.popitem(last=False)

    def get(self, name: str) -> Voice | None:
        """The voice of that name, which counts as a use; None when it's not here, or not any more."""
        if name in self._voices:
            self._voices.move_to_end(name)
        return self._voices.get(name)
