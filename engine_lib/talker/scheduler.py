"""Choose which streams wait, hold a slot and run next. Knows lengths and deadlines; no tensors, no Triton."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine_lib.errors import Overloaded
from engine_lib.profile import Profile
from engine_lib.talker.stream import Stream

PATIENCE = 25  # steps


@dataclass(frozen=True)
class Batch:
    """What one step runs: streams whose prompts go on, and streams that make one more frame."""

    prefill: list[Stream]
    decode: list[Stream]


class Scheduler:
    """Streams in order of arrival: the first `max_active` hold slots, the rest wait."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._free = list(range(profile.max_active - 1, -1, -1))
        self._running: dict[str, Stream] = {}
        self._waiting: deque[Stream] = deque()
        self._steps = 0

    @property
    def active(self) -> int:
        """Streams that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Streams that wait for one."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether one more stream would be refused."""
        return not self._free and len(self._waiting) >= self._profile.max_waiting

    @property
    def has_work(self) -> bool:
        """Whether `next` would find a stream to run."""
        return any(stream.runnable for stream in self._running.values())

    def find(self, stream_id: str) -> Stream | None:
        """The stream of that id, running or waiting."""
        if stream_id in self._running:
            return self._running[stream_id]
        return next((stream for stream in self._waiting if stream.id == stream_id), None)

    def streams(self) -> list[Stream]:
        """Every stream, running ones first."""
        return [*self._running.values(), *self._waiting]

    def add(self, stream: Stream, now: float) -> None:
        """Take a stream in at `now`, in seconds. Raises Overloaded when as many wait already as may."""
        if self.full:
            raise Overloaded("Too many utterances are waiting; try again in a moment.")
        stream.arrived, stream.last_step = now, self._steps
        self._waiting.append(stream)
        self._fill_slots()

    def remove(self, stream: Stream) -> None:
        """Let a stream go, wherever it is; its slot passes to the longest waiting."""
        if stream.id in self._running:
            del self._running[stream.id]
            assert stream.slot is not None
            self._free.append(stream.slot)
            stream.slot = None
            self._fill_slots()
        else:
            self._waiting.remove(stream)

    def next(self, now: float) -> Batch | None:
        """The next step's streams, or None when nothing can run. `now` is in seconds, on the clock of Stream.lead."""
        runnable = [stream for stream in self._running.values() if stream.runnable]
        prefill = [stream for stream in runnable if stream.in_prefill]
        decode = [stream for stream in runnable if not stream.in_prefill]
        if not prefill and not decode:
            return None
        rows = self._profile.rows_per_step
        if len(decode) > rows:
            decode = sorted(decode, key=lambda stream: self._urgency(stream, now))[:rows]
        self._steps += 1
        for stream in decode:
            stream.last_step = self._steps
        return Batch(prefill[:rows], decode)

    def _urgency(self, stream: Stream, now: float) -> tuple[int, float]:
        """Least first. Deadline: about to run dry by how soon, then not yet heard, then the rest by how soon.

        Whoever was passed over PATIENCE times goes before all of these, so that nobody starves under overload.
        """
        if self._profile.scheduling == "round_robin" or self._steps - stream.last_step > PATIENCE:
            return -1, stream.last_step
        lead = stream.lead(now)
        if stream.has_spoken and lead < self._profile.urgent_lead_ms / 1000:
            return 0, lead
        return (2, lead) if stream.has_spoken else (1, stream.last_step)

    def _fill_slots(self) -> None:
        while self._free and self._waiting:
            stream = self._waiting.popleft()
            stream.slot = self._free.pop()
            self._running[stream.id] = stream
