"""The talker's loop: one thread that owns the model, takes actions in, and hands chunks out.

Everything a client can do arrives as an action in the inbox; everything it gets leaves through its stream's `deliver`,
which must not block.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engine_lib.errors import InvalidRequest, NotFound, ServiceError
from engine_lib.metrics import Samples
from engine_lib.profile import Profile
from engine_lib.recent import RecentNames
from engine_lib.talker.config import SamplingDefaults, TalkerConfig
from engine_lib.talker.live import Done, LiveDesk, LiveUtterance
from engine_lib.talker.model import Talker
from engine_lib.talker.path import choose_path
from engine_lib.talker.requests import Requests
from engine_lib.talker.scheduler import Batch, Scheduler
from engine_lib.talker.step import Step
from engine_lib.talker.stream import Chunk, Deliver, Stream
from engine_lib.text.tokenizer import TextTokenizer
from engine_lib.turns import TalkerTurns
from engine_lib.wire import Description, FinishReason, StreamOptions, Voice

log = logging.getLogger(__name__)

AHEAD_S = 0.0005  # a step is started so long before the one under way ends, which hides the start
FORGETTING = 1.01  # from one step to the next of its kind, the time that it's expected to take grows by as much at most
ACTIONS_S = 0.02  # how long clients' actions may hold up the next step, so that no flood of them silences anyone
REMEMBERED = 4096  # streams that ended, and cancels that overtook their start on the way through Triton


@dataclass
class Metrics:
    """Counts since the start. The engine's thread writes, any thread reads."""

    frames: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    failed_steps: int = 0
    step_s: Samples = field(default_factory=Samples)
    step_rows: Samples = field(default_factory=Samples)
    first_chunk_s: Samples = field(default_factory=Samples)  # from a stream's arrival at the scheduler


@dataclass(frozen=True)
class _UnderWay:
    batch: Batch
    step: Step
    begin: float  # seconds


class Engine:
    """Speaks texts with one checkpoint. Public methods may be called from any thread."""

    def __init__(
        self,
        talker: Talker,
        tokenizer: TextTokenizer,
        defaults: SamplingDefaults,
        profile: Profile,
        *,
        model: str,
        speaks: bool = True,
        clock: Callable[[], float] = time.monotonic,
        turns: TalkerTurns | None = None,
    ) -> None:
        """`turns`: with a codec on the same GPU."""
        self._requests = Requests(talker.config, tokenizer, defaults, profile)
        self._steps = choose_path(talker, profile)
        self._steps.warm_up(self._requests.sampling(StreamOptions.model_validate({})))
        self._scheduler = Scheduler(profile)
        self._live = LiveDesk(self._requests, self._scheduler, profile, self._give_up)
        self._model, self._speaks = model, speaks
        self._clock = clock
        self._turns = turns if self._steps.overlaps else None
        self._turns_rows = profile.gpu_turns_rows
        self.metrics = Metrics()
        self._cancelled_early = RecentNames(REMEMBERED)
        self._ended = RecentNames(REMEMBERED)
        self._inbox: list[Callable[[], None]] = []
        self._wake = threading.Condition()
        self._closed = False
        self._under_way: _UnderWay | None = None
        self._last_finish = 0.0
        self._takes: dict[Hashable, float] = {}  # seconds that each kind of step needs
        self._thread = threading.Thread(target=self._run, name="talker", daemon=True)
        self._thread.start()

    @classmethod
    def from_checkpoint(
        cls,
        directory: Path,
        profile: Profile,
        device: torch.device,
        *,
        model: str,
        speaks: bool = True,
        turns: TalkerTurns | None = None,
    ) -> Engine:
        """Load a checkpoint in the official layout. Raises ConfigurationError naming what doesn't fit."""
        config = TalkerConfig.from_directory(directory)
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(
            profile.talker_dtype, torch.bfloat16 if device.type == "cuda" else torch.float32
        )
        talker = Talker.from_directory(directory, config, dtype, device)
        tokenizer = TextTokenizer(directory, im_start=config.ids.im_start, im_end=config.ids.im_end)
        defaults = SamplingDefaults.from_directory(directory)
        engine = cls(talker, tokenizer, defaults, profile, model=model, speaks=speaks, turns=turns)
        steps = engine._steps
        log.info("talker on %s in %s, path: %s, cache %.0f MiB", device, dtype, steps.path, steps.bytes() / 2**20)
        return engine

    @property
    def active(self) -> int:
        """Streams that hold a slot."""
        return self._scheduler.active

    @property
    def waiting(self) -> int:
        """Streams that wait for one."""
        return self._scheduler.waiting

    @property
    def flushes(self) -> int:
        """How often live text was spoken before it was known to be final."""
        return self._live.flushes

    def start(
        self, text: str, options: StreamOptions, stream_id: str, deliver: Deliver, voice: Voice | None = None
    ) -> None:
        """Speak `text`, in a cloned `voice` if there is one. From one thread at a time.

        Chunks, or one error, arrive through `deliver` on the engine's thread. Raises InvalidRequest naming the field
        when the request can't be spoken.
        """
        stream = self._requests.stream(text, options, stream_id or uuid.uuid4().hex, deliver, voice)
        self._post(lambda: self._start(stream.id, deliver, lambda: self._scheduler.add(stream, self._clock())))

    def start_live(
        self, text: str, options: StreamOptions, stream_id: str, deliver: Deliver, voice: Voice | None = None
    ) -> None:
        """Speak a text that is still being written, from `text` on, which may be empty. Else as `start`."""
        if not stream_id:
            raise InvalidRequest("Live text needs a STREAM_ID of its own.", param="STREAM_ID")
        now = self._clock()
        voicing = self._requests.voicing(options, voice, live=True)
        utterance = LiveUtterance(stream_id, options, voicing, self._requests.live_text(), deliver, touched=now)
        utterance.begin_with(text)
        self._post(lambda: self._start(stream_id, deliver, lambda: self._live.start(utterance)))

    def append(self, stream_id: str, sequence: int, text: str, done: Done) -> None:
        """Add `text` to a live text. `done` gets the text tokens committed so far, or why it was refused."""
        self._post_live(stream_id, done, lambda now: self._live.append(stream_id, sequence, text, done, now))

    def end(self, stream_id: str, sequence: int, done: Done) -> None:
        """Close a live text. `done` as for `append`."""
        self._post_live(stream_id, done, lambda now: self._live.end(stream_id, sequence, done, now))

    def cancel(self, stream_id: str, done: Callable[[], None]) -> None:
        """End a stream, or the one of that id that is still on its way here. Then calls `done`."""

        def action() -> None:
            if not self._end_now(stream_id, FinishReason.CANCELLED) and stream_id not in self._ended:
                self._cancelled_early.add(stream_id)
            done()

        self._post(action)

    def describe(self, done: Callable[[Description], None]) -> None:
        """Call `done` with what the engine is and does. The loop answers, so an answer shows that it lives."""
        self._post(lambda: done(self._description()))

    def close(self) -> None:
        """Stop the loop; streams that still speak end as failed."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _post(self, action: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(action)
            self._wake.notify()

    def _run(self) -> None:
        while self._take_actions():
            if self._clock() >= self._next_start():
                self._step()
        self._finish()
        for stream_id in [*(stream.id for stream in self._scheduler.streams()), *self._live.ids()]:
            self._end_now(stream_id, FinishReason.FAILED)

    def _take_actions(self) -> bool:
        """Wait until there is something to do, do what the inbox and the clock ask. False when closed."""
        with self._wake:
            deadline = self._live.deadline()
            times = [] if deadline is None else [deadline]
            if self._under_way is not None:
                times.append(self._next_start())
            patience = max(0.0, min(times) - self._clock()) if times else None
            self._wake.wait_for(self._has_work, patience)
        self._act()
        if deadline is not None:
            for stream_id in self._live.tick(self._clock()):
                self._end_now(stream_id, FinishReason.CANCELLED)
        return not self._closed

    def _act(self) -> None:
        """Do what the inbox asks, for a while."""
        with self._wake:
            actions, self._inbox = self._inbox, []
        enough = self._clock() + ACTIONS_S
        for done, action in enumerate(actions, 1):
            action()
            if self._clock() >= enough and not self._closed:
                with self._wake:
                    self._inbox = actions[done:] + self._inbox
                break

    def _has_work(self) -> bool:
        if self._inbox or self._closed:
            return True
        return self._scheduler.has_work if self._under_way is None else self._clock() >= self._next_start()

    def _next_start(self) -> float:
        """When to start the next step: so late that a stream that arrives meanwhile joins, but the device never waits.

        Where nobody knows how long a step takes, at once.
        """
        if self._under_way is None:
            return self._last_finish
        begin, kind = max(self._under_way.begin, self._last_finish), self._under_way.step.kind
        return begin + max(0.0, self._takes.get(kind, 0.0) - AHEAD_S)

    def _step(self) -> None:
        """Start the next step, then finish the one before: its codes are handled while the device is busy.

        Unless it's the codec's turn: then finish first.
        """
        if self._turns is not None and self._takes_turns() and (self._someone_begins() or self._turns.are_the_codecs()):
            self._finish()
            self._turns.wait()
            self._act()
        begin = self._clock()
        batch = self._scheduler.next(begin)
        started = None
        if batch is not None:
            try:
                started = _UnderWay(batch, self._steps.start(batch), begin)
            # Whatever broke, it broke these streams: the others and the service go on.
            except Exception:
                self._fail(batch)
            else:
                for stream in started.step.streams:
                    stream.asked += 1
                if self._turns is not None and len(started.step.streams) <= self._turns_rows:
                    self._turns.begin()
                elif self._turns is not None:
                    self._turns.end()
        self._finish(busy=started is not None)
        self._under_way = started
        if not self._steps.overlaps:
            self._finish()

    def _takes_turns(self) -> bool:
        """Whether so few streams speak that turns at the GPU are worth their waits."""
        return self._under_way is None or len(self._under_way.step.streams) <= self._turns_rows

    def _someone_begins(self) -> bool:
        """Whether the step under way makes a stream's first chunk."""
        return self._under_way is not None and any(stream.is_about_to_speak for stream in self._under_way.step.streams)

    def _finish(self, *, busy: bool = False) -> None:
        """Wait for the step that is under way and hand on what it made. `busy`: another one follows it already."""
        if self._under_way is None:
            return
        batch, step, begin = self._under_way.batch, self._under_way.step, self._under_way.begin
        self._under_way = None
        try:
            codes = step.wait()
        except Exception:
            self._fail(batch)
            return
        finally:
            if self._turns is not None and not busy:
                self._turns.end()
        now = self._clock()
        self.metrics.step_s.observe(now - max(begin, self._last_finish))
        if step.took is not None:
            self._takes[step.kind] = min(step.took(), self._takes.get(step.kind, math.inf) * FORGETTING)
        self._last_finish = now
        self.metrics.step_rows.observe(len(step.streams))
        for stream, frame in zip(step.streams, codes, strict=True):
            if stream.finish_reason is None:  # else it ended while this step was under way
                self.metrics.frames += stream.accept(frame)
                self._deliver(stream, now)

    def _start(self, stream_id: str, deliver: Deliver, take_in: Callable[[], None]) -> None:
        if self._cancelled_early.discard(stream_id):
            self.metrics.finished[FinishReason.CANCELLED] += 1
            deliver(Chunk.ending(stream_id, FinishReason.CANCELLED))
        elif self._scheduler.find(stream_id) or stream_id in self._live:
            deliver(InvalidRequest("A stream of this STREAM_ID is speaking already.", param="STREAM_ID"))
        else:
            try:
                take_in()
            except ServiceError as error:
                deliver(error)

    def _post_live(self, stream_id: str, done: Done, act: Callable[[float], None]) -> None:
        """Post an act on a live text, which is refused when its stream has ended."""

        def action() -> None:
            if stream_id in self._ended and stream_id not in self._live:
                done(NotFound("This stream has ended.", param="STREAM_ID"))
            else:
                act(self._clock())

        self._post(action)

    def _give_up(self, utterance: LiveUtterance, error: ServiceError) -> None:
        """End a live text that can't go on."""
        if utterance.stream is None:
            self._live.remove(utterance.stream_id)
            self._ended.add(utterance.stream_id)
            utterance.deliver(error)
        else:
            self._end_now(utterance.stream_id, FinishReason.CANCELLED)

    def _end_now(self, stream_id: str, reason: FinishReason) -> bool:
        """End a stream or a live text that has none yet. False when there is neither."""
        if stream := self._scheduler.find(stream_id):
            stream.end(reason)
            self._scheduler.remove(stream)
            self._deliver(stream, self._clock())
        elif utterance := self._live.remove(stream_id):
            self._ended.add(stream_id)
            self.metrics.finished[reason] += 1
            utterance.deliver(Chunk.ending(stream_id, reason))
        else:
            return False
        return True

    def _deliver(self, stream: Stream, now: float) -> None:
        chunk = stream.take_chunk(now)
        if chunk is None:
            return
        if chunk.index == 0:
            self.metrics.first_chunk_s.observe(now - stream.arrived)
            if self._turns is not None and len(chunk.codes):
                self._turns.first_chunk()
        if chunk.finish_reason is not None:
            if stream.slot is not None:
                self._scheduler.remove(stream)
            self._live.remove(stream.id)
            self._ended.add(stream.id)
            self.metrics.finished[chunk.finish_reason] += 1
            if chunk.finish_reason is FinishReason.LENGTH and not stream.limit_is_asked:
                log.warning("stream %s reached its limit of %d frames", stream.id, stream.limit)
        stream.deliver(chunk)

    def _fail(self, batch: Batch) -> None:
        streams = [stream for stream in (*batch.prefill, *batch.decode) if stream.finish_reason is None]
        self.metrics.failed_steps += 1
        log.exception("a step failed; streams %s end", ", ".join(stream.id for stream in streams))
        for stream in streams:
            self._end_now(stream.id, FinishReason.FAILED)

    def _description(self) -> Description:
        return self._requests.description(
            model=self._model,
            speaks=self._speaks,
            device=str(self._steps.device),
            path=self._steps.path,
            active=self._scheduler.active,
            waiting=self._scheduler.waiting,
        )
