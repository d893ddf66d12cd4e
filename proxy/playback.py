"""What a listener hears who plays each piece of sound as soon as it comes. Knows times; knows no sound and no clock."""

from __future__ import annotations


class Playback:
    """One utterance, played from the arrival of its first sound on, without a buffer of its own."""

    def __init__(self) -> None:
        self.underruns = 0  # how often the sound ran out before the next piece of it came
        self.silent_s = 0.0  # how long those were
        self.last: float | None = None  # when the last sound arrived
        self._plays_until: float | None = None

    def hear(self, arrived: float, seconds: float) -> None:
        """A piece that plays for `seconds` arrived at the time `arrived`, in seconds of any clock."""
        if seconds == 0:
            return
        if self._plays_until is not None and arrived > self._plays_until:
            self.underruns += 1
            self.silent_s += arrived - self._plays_until
        self._plays_until = max(arrived, self._plays_until or arrived) + seconds
        self.last = arrived
