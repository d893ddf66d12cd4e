"""What a listener would say of one response: when its sound came, when it could be heard, where it broke off.

Takes bytes with the time of their arrival; knows nothing of how they travelled. All times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

BYTES_PER_SAMPLE = 2  # s16le, mono
WINDOW_S = 0.02  # of the loudness
AUDIBLE_DBFS = -45.0  # RMS, against a full-scale square wave
AUDIBLE_WINDOWS = 2  # in a row that must be as loud
FULL_SCALE = 32_768.0
WAV_LIMIT = 4096  # bytes within which a WAV header has to end


class Malformed(Exception):
    """These bytes aren't the sound that was asked for."""


@dataclass
class Heard:
    """What was noted. Times of arrival count from time zero; None: it never came.

    A listener with no buffer begins to play when the first sample is there. Whenever sound comes later than it is due,
    the listener falls silent (an underrun) and goes on when it comes, so one delay is one underrun.
    """

    first_byte_s: float | None = None  # of the body, be it only a header
    playable_s: float | None = None  # the first sample is complete
    audible_s: float | None = None  # all of the first AUDIBLE_WINDOWS loud windows is here
    onset_s: float | None = None  # where these windows begin, in the sound
    last_byte_s: float | None = None
    audio_s: float = 0.0  # length of the sound
    underruns: int = 0
    stalled_s: float = 0.0  # the listener's silence, in all underruns
    gaps_s: list[float] = field(default_factory=list)  # from one arrival of sound to the next


class Listener:
    """Listens to one response: `feed` it what arrives, then `finish`."""

    def __init__(self, sample_rate: int, *, wav: bool = False) -> None:
        self.heard = Heard()
        self._sample_rate = sample_rate
        self._header: bytes | None = b"" if wav else None  # of a WAV file, while it isn't complete
        self._half = b""  # of a sample
        self._arrived_s = 0.0  # the last sound
        self._silent_at_s = 0.0  # when a listener who plays has nothing left
        self._onset = _Onset(sample_rate)

    def feed(self, data: bytes, at_s: float) -> None:
        """Take bytes that arrived at `at_s`. Raises Malformed."""
        heard = self.heard
        if not data:
            return
        if heard.first_byte_s is None:
            heard.first_byte_s = at_s
        heard.last_byte_s = at_s
        data = self._half + self._without_header(data)
        whole = len(data) - len(data) % BYTES_PER_SAMPLE
        data, self._half = data[:whole], data[whole:]
        if data:
            self._take_sound(data, at_s)

    def finish(self) -> Heard:
        """What was heard, now that the response has ended well. Raises Malformed."""
        if self._header:
            raise Malformed("the header isn't complete")
        if self._half:
            raise Malformed("the last sample is half")
        return self.heard

    def _take_sound(self, data: bytes, at_s: float) -> None:
        heard = self.heard
        if heard.playable_s is None:
            heard.playable_s = self._silent_at_s = at_s
        else:
            heard.gaps_s.append(at_s - self._arrived_s)
        if at_s > self._silent_at_s:
            heard.underruns += 1
            heard.stalled_s += at_s - self._silent_at_s
            self._silent_at_s = at_s
        length_s = len(data) / BYTES_PER_SAMPLE / self._sample_rate
        self._arrived_s = at_s
        self._silent_at_s += length_s
        heard.audio_s += length_s
        if heard.audible_s is None and (onset_s := self._onset.find(data)) is not None:
            heard.audible_s, heard.onset_s = at_s, onset_s

    def _without_header(self, data: bytes) -> bytes:
        """`data` from where the samples begin."""
        if self._header is None:
            return data
        self._header += data
        sound = _after_wav_header(self._header, self._sample_rate)
        if sound is None:
            return b""
        self._header = None
        return sound


class _Onset:
    """Finds where sound becomes audible. Samples come in pieces."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._window = round(WINDOW_S * sample_rate)  # samples
        self._rest = np.zeros(0, np.float32)  # less than a window
        self._windows = 0  # so far
        self._loud = 0  # in a row, up to the last

    def find(self, data: bytes) -> float | None:
        """Where the loud windows begin, in seconds of the sound, once they have come."""
        samples = np.concatenate([self._rest, np.frombuffer(data, "<i2").astype(np.float32)])
        count = len(samples) // self._window
        windows = samples[: count * self._window].reshape(count, self._window)
        self._rest = samples[count * self._window :]
        rms = np.sqrt(np.mean(np.square(windows / FULL_SCALE), axis=1))  # [count]
        for is_loud in rms > 10 ** (AUDIBLE_DBFS / 20):
            self._windows += 1
            self._loud = self._loud + 1 if is_loud else 0
            if self._loud == AUDIBLE_WINDOWS:
                return (self._windows - AUDIBLE_WINDOWS) * self._window / self._sample_rate
        return None


def _after_wav_header(data: bytes, sample_rate: int) -> bytes | None:
    """What follows the header of a WAV file, or None while that isn't complete. Raises Malformed."""
    if len(data) < 12:
        return None
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise Malformed("no WAV file")
    place = 12
    while len(data) >= place + 8:
        name, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        if name == b"data":
            return data[place + 8 :]
        if name == b"fmt " and len(data) >= place + 24:
            _check_format(data[place + 8 : place + 24], sample_rate)
        place += 8 + size + size % 2
        if place > WAV_LIMIT:
            raise Malformed("no sound near the begin of the WAV file")
    return None


def _check_format(fmt: bytes, sample_rate: int) -> None:
    channels = int.from_bytes(fmt[2:4], "little")
    rate = int.from_bytes(fmt[4:8], "little")
    bits = int.from_bytes(fmt[14:16], "little")
    if (channels, rate, bits) != (1, sample_rate, 8 * BYTES_PER_SAMPLE):
        raise Malformed(f"{channels} channels of {bits} bits at {rate} Hz, not one of 16 at {sample_rate}")
