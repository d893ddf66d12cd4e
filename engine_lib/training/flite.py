"""The teacher: flite's library, through ctypes. One call a sentence, which gives samples and the times of the phones.

flite and its CMU voices come as Debian's libflite1; see the notice beside the checkpoint.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
_NEEDED = ("libflite.so.1", "libflite_cmulex.so.1", "libflite_usenglish.so.1")


class _Wave(ctypes.Structure):
    """cst_wave."""

    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


@dataclass(frozen=True)
class Utterance:
    """int16 samples at RATE, and each phone with its end in seconds."""

    samples: NDArray[np.int16]
    phones: tuple[tuple[str, float], ...]


class Flite:
    """One voice. Not for threads."""

    def __init__(self, voice: str, folder: Path | None = None) -> None:
        """`voice` as flite names it, cmu_us_slt say; `folder` has the libraries unless the system does."""

        def library(name: str) -> ctypes.CDLL:
            return ctypes.CDLL(str(folder / name) if folder else name, ctypes.RTLD_GLOBAL)

        if folder and (folder / "libasound.so.2").exists():
            library("libasound.so.2")
        flite, *_ = [library(name) for name in _NEEDED]
        flite.flite_init()
        self._call: dict[str, Any] = {}
        signatures: tuple[tuple[str, Any, list[Any]], ...] = (
            ("flite_synth_text", ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_void_p]),
            ("utt_wave", ctypes.POINTER(_Wave), [ctypes.c_void_p]),
            ("utt_relation", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
            ("relation_head", ctypes.c_void_p, [ctypes.c_void_p]),
            ("item_next", ctypes.c_void_p, [ctypes.c_void_p]),
            ("item_feat_string", ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_char_p]),
            ("item_feat_float", ctypes.c_float, [ctypes.c_void_p, ctypes.c_char_p]),
            ("delete_utterance", None, [ctypes.c_void_p]),
        )
        for name, result, arguments in signatures:
            function = self._call[name] = flite[name]
            function.restype, function.argtypes = result, arguments
        register = library(f"libflite_{voice}.so.1")[f"register_{voice}"]
        register.restype, register.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        self._voice = register(None)

    def speak(self, text: str) -> Utterance:
        """`text` spoken."""
        call = self._call
        utterance = call["flite_synth_text"](text.encode("ascii"), self._voice)
        try:
            wave = call["utt_wave"](utterance).contents
            samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).copy()
            assert wave.sample_rate == RATE
            phones = []
            item = call["relation_head"](call["utt_relation"](utterance, b"Segment"))
            while item:
                end = call["item_feat_float"](item, b"end")
                phones.append((call["item_feat_string"](item, b"name").decode(), end))
                item = call["item_next"](item)
        finally:
            call["delete_utterance"](utterance)
        return Utterance(samples, tuple(phones))
