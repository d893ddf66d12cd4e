"""Laws of text that waits for the engine: nothing lost, nothing out of order, few messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.backlog import MOST_CHARACTERS, Backlog, Message

PIECES = st.lists(st.one_of(st.text(max_size=5), st.integers(0, 3000).map(lambda size: "x" * size)), max_size=30)


@given(PIECES, st.text(max_size=5), st.lists(st.booleans(), max_size=60))
def test_whatever_is_taken_when_all_comes_out_once_and_in_order(
    pieces: list[str], rest: str, takes: list[bool]
) -> None:
    backlog, taken = Backlog(), list[Message]()
    waiting = iter(pieces)
    for take in takes:
        if take and backlog:
            taken.append(backlog.take())
        elif (piece := next(waiting, None)) is not None:
            backlog.add(piece)
    for piece in waiting:
        backlog.add(piece)
    backlog.end(rest)
    while backlog:
        taken.append(backlog.take())
    *texts, end = taken
    assert end.text is None
    assert "".join(message.text or "" for message in texts) == "".join(pieces) + rest
    assert all(message.text is not None and len(message.text) <= MOST_CHARACTERS for message in texts)
    assert [number for message in taken for number in message.sequences] == list(range(len(pieces) + 1))


def test_a_piece_counts_as_taken_with_the_message_that_holds_its_last_character() -> None:
    backlog = Backlog()
    backlog.add("a" * MOST_CHARACTERS + "b")
    backlog.add("c")
    assert backlog.take() == Message("a" * MOST_CHARACTERS, range(0))
    assert backlog.take() == Message("bc", range(2))
    assert not backlog


def test_what_is_cleared_does_not_come_out() -> None:
    backlog = Backlog()
    backlog.add("a")
    backlog.end("b")
    backlog.clear()
    assert not backlog
