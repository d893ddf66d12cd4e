"""Utterances whose text is still being written: what has come, in order, and when held-back text is due.

Knows text, streams and the clock; knows no tensors and no Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from engine_lib.errors import InvalidRequest, NotFound, Overloaded, ServiceError
from engine_lib.profile import Profile
from engine_lib.talker.requests import Requests
from engine_lib.talker.scheduler import Scheduler
from engine_lib.talker.stream import Deliver, Stream
from engine_lib.text.live import LiveText
from engine_lib.text.prompt import Voicing
from engine_lib.wire import MAX_CHARACTERS, StreamOptions, is_visible, text_problem

log = logging.getLogger(__name__)

MAX_EARLY = 1024  # actions held for streams whose start is still on its way
EARLY_LIMIT_S = 10.0  # a start that takes longer never comes

Done = Callable[[int | ServiceError], None]  # the text tokens committed so far, or why the action was refused


@dataclass
class LiveUtterance:
    """One text on its way to becoming, and then feeding, a stream."""

    stream_id: str
    options: StreamOptions
    voicing: Voicing
    text: LiveText
    deliver: Deliver
    touched: float  # seconds, when text last came
    tokens: list[int] = field(default_factory=list)  # final, but not in the stream yet
    stream: Stream | None = None
    ended: bool = False
    next_sequence: int = 0
    characters: int = 0
    visible: bool = False  # whether anything in it can be spoken

    @property
    def committed(self) -> int:
        """Text tokens that the stream has."""
        return self.stream.text_tokens if self.stream else 0

    def append(self, sequence: int, text: str, now: float) -> None:
        """Take a piece of text. Raises InvalidRequest, and takes nothing, when it's out of turn or not text."""
        self._expect(sequence)
        self.begin_with(text)
        self.next_sequence += 1
        self.touched = now

    def begin_with(self, text: str) -> None:
        """Take text without a turn. Raises InvalidRequest, and takes nothing, when it isn't text or too long."""
        if problem := text_problem(text):
            raise InvalidRequest(f"The text {problem}.", param="text", code="invalid_text")
        if self.characters + len(text) > MAX_CHARACTERS:
            raise InvalidRequest(f"The text is over {MAX_CHARACTERS} characters.", param="text", code="input_too_large")
        self.characters += len(text)
        self.visible = self.visible or is_visible(text)
        self.tokens += self.text.append(text)

    def end(self, sequence: int) -> None:
        """Close the text. Raises InvalidRequest when it's out of turn, or nothing can be spoken."""
        self._expect(sequence)
        if not self.visible:
            raise InvalidRequest("The text is blank.", param="text", code="empty_input")
        self.next_sequence += 1
        self.ended = True
        self.flush()

    def flush(self) -> None:
        """Speak what is held as it is, without waiting for what may follow."""
        self.tokens += self.text.flush()

    def _expect(self, sequence: int) -> None:
        if self.ended or sequence != self.next_sequence:
            due = "no more text was due" if self.ended else f"{self.next_sequence} was due"
            raise InvalidRequest(f"Sequence {sequence} came where {due}.", param="sequence", code="invalid_sequence")


class LiveDesk:
    """All live utterances. The engine's thread alone calls it."""

    def __init__(
        self,
        requests: Requests,
        scheduler: Scheduler,
        profile: Profile,
        give_up: Callable[[LiveUtterance, ServiceError], None],
    ) -> None:
        """`give_up` ends an utterance that can't go on, and says why."""
        self._requests = requests
        self._give_up = give_up
        self._scheduler = scheduler
        self._profile = profile
        self._utterances: dict[str, LiveUtterance] = {}
        self._early: list[tuple[float, str, Callable[[], None], Done]] = []
        self.flushes = 0  # texts of which a part was spoken before it was known to be final

    def __contains__(self, stream_id: str) -> bool:
        return stream_id in self._utterances

    def ids(self) -> list[str]:
        """Streams whose text is here."""
        return list(self._utterances)

    def start(self, utterance: LiveUtterance) -> None:
        """Open a text, and do what came before its start. Raises Overloaded when no stream can be taken in."""
        if self._scheduler.full or len(self._utterances) >= self._profile.max_active + self._profile.max_waiting:
            raise Overloaded("Too many utterances are waiting; try again in a moment.")
        self._utterances[utterance.stream_id] = utterance
        if refusal := self._advance(utterance, utterance.touched):
            self._give_up(utterance, refusal)
        waited = [entry for entry in self._early if entry[1] == utterance.stream_id]
        self._early = [entry for entry in self._early if entry[1] != utterance.stream_id]
        for _, _, action, done in waited:
            if utterance.stream_id in self._utterances:
                action()
            else:
                done(NotFound("This stream has ended.", param="STREAM_ID"))

    def append(self, stream_id: str, sequence: int, text: str, done: Done, now: float) -> None:
        """Add to a text, or hold the action until the text's start."""
        if stream_id not in self._utterances:
            self._hold(stream_id, lambda: self.append(stream_id, sequence, text, done, now), done, now)
            return
        utterance = self._utterances[stream_id]

        def take() -> None:
            utterance.append(sequence, text, now)
            if utterance.text.held >= self._profile.flush_characters:
                self._flush(utterance)

        self._act(utterance, take, done, now)

    def end(self, stream_id: str, sequence: int, done: Done, now: float) -> None:
        """Close a text, or hold the action until the text's start."""
        if stream_id not in self._utterances:
            self._hold(stream_id, lambda: self.end(stream_id, sequence, done, now), done, now)
            return
        utterance = self._utterances[stream_id]
        self._act(utterance, lambda: utterance.end(sequence), done, now)

    def remove(self, stream_id: str) -> LiveUtterance | None:
        """Forget a text whose stream has ended, or that never got one."""
        return self._utterances.pop(stream_id, None)

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        flush_after = self._profile.flush_after_ms / 1000
        times = [entry[0] for entry in self._early]
        for utterance in self._utterances.values():
            if not utterance.ended:
                times.append(utterance.touched + self._profile.live_idle_timeout_s)
                if self._is_held(utterance):
                    times.append(utterance.touched + flush_after)
        return min(times, default=None)

    def tick(self, now: float) -> list[str]:
        """Speak what was held long enough, refuse what waited for a start in vain; ids of texts given up on."""
        for deadline, _, _, done in self._early:
            if now >= deadline:
                done(NotFound("There is no such stream.", param="STREAM_ID"))
        self._early = [entry for entry in self._early if now < entry[0]]
        open_texts = [utterance for utterance in self._utterances.values() if not utterance.ended]
        for utterance in open_texts:
            if self._is_held(utterance) and now - utterance.touched >= self._profile.flush_after_ms / 1000:
                self._flush(utterance)
                refusal = self._advance(utterance, now)
                if refusal and utterance.stream is None:  # else whoever writes next is told
                    self._give_up(utterance, refusal)
        idle = [u.stream_id for u in open_texts if now - u.touched >= self._profile.live_idle_timeout_s]
        for stream_id in idle:
            log.warning("stream %s: no text came for %g s", stream_id, self._profile.live_idle_timeout_s)
        return idle

    def _is_held(self, utterance: LiveUtterance) -> bool:
        return utterance.visible and utterance.text.held > 0

    def _flush(self, utterance: LiveUtterance) -> None:
        self.flushes += 1
        utterance.flush()

    def _act(self, utterance: LiveUtterance, action: Callable[[], None], done: Done, now: float) -> None:
        try:
            action()
        except ServiceError as error:
            done(error)
        else:
            refusal = self._advance(utterance, now)
            done(utterance.committed if refusal is None else refusal)
            if refusal:  # told before the stream ends, since its end is all that a client waits for
                self._give_up(utterance, refusal)

    def _advance(self, utterance: LiveUtterance, now: float) -> ServiceError | None:
        """Hand final tokens to the stream, which begins with the first of them; why that isn't possible."""
        try:
            if self._feed(utterance, now) and utterance.ended and utterance.stream:
                self._requests.close_text(utterance.stream)
        except ServiceError as error:
            return error
        return None

    def _feed(self, utterance: LiveUtterance, now: float) -> bool:
        """False while there is no stream to feed."""
        if not utterance.visible:
            return False
        if utterance.stream is None:
            stream = self._requests.begin(utterance)
            if stream is None:
                return False
            self._scheduler.add(stream, now)
            utterance.stream = stream
        elif self._requests.has_room(utterance.stream, len(utterance.tokens)):
            utterance.stream.feed(utterance.tokens)
        else:
            raise InvalidRequest("The text is longer than a stream can hold.", param="text", code="input_too_large")
        utterance.tokens.clear()
        return True

    def _hold(self, stream_id: str, action: Callable[[], None], done: Done, now: float) -> None:
        if len(self._early) >= MAX_EARLY:
            done(NotFound("There is no such stream.", param="STREAM_ID"))
        else:
            self._early.append((now + EARLY_LIMIT_S, stream_id, action, done))
