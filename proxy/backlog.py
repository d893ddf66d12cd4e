"""Live text that is written faster than the engine takes it: pieces that wait, merged into few messages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MOST_CHARACTERS = 1024  # in one message: the engine makes tokens of them between two steps of everybody's


@dataclass(frozen=True)
class Message:
    """What one request to the engine says: some text, or the end of it."""

    text: str | None  # None: the end
    sequences: range  # of the pieces that are complete with it; the end counts as one


class Backlog:
    """One text's pieces and its end, in order and without loss. Every piece gets the next number, from 0 on."""

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._due = 0  # the number of the first of them
        self._rest = ""
        self._ended = False

    def __bool__(self) -> bool:
        return self._has_text or self._ended

    @property
    def _has_text(self) -> bool:
        return bool(self._pieces or self._rest)

    @property
    def at_end(self) -> bool:
        """Whether the end alone is left."""
        return self._ended and not self._has_text

    def add(self, piece: str) -> None:
        """A piece more."""
        self._pieces.append(piece)

    def end(self, rest: str = "") -> None:
        """No more pieces; `rest` is text that has no number of its own."""
        self._rest, self._ended = rest, True

    def clear(self) -> None:
        """Forget all of it."""
        self._pieces.clear()
        self._rest, self._ended = "", False

    def take(self) -> Message:
        """The next message. Raises ValueError when there is none."""
        first = self._due
        if self.at_end:
            self._ended = False
            self._due += 1
            return Message(None, range(first, self._due))
        if not self._has_text:
            raise ValueError("there is no text")
        texts, room = [], MOST_CHARACTERS
        while self._pieces and len(self._pieces[0]) <= room:
            texts.append(self._pieces.popleft())
            room -= len(texts[-1])
            self._due += 1
        if self._pieces:
            texts.append(self._pieces[0][:room])
            self._pieces[0] = self._pieces[0][room:]
        else:
            texts.append(self._rest[:room])
            self._rest = self._rest[room:]
        return Message("".join(texts), range(first, self._due))
