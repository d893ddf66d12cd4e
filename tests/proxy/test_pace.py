"""Laws of how often something may be done."""

from __future__ import annotations

from proxy.pace import Pace


def test_some_are_free_at_once_and_then_so_many_a_second() -> None:
    now = [100.0]
    pace = Pace(3, 4, clock=lambda: now[0])
    waits = []
    for _ in range(6):
        waits.append(pace.wait_s)
        now[0] += pace.wait_s
        pace.count()
    assert waits == [0, 0, 0, 0.25, 0.25, 0.25]


def test_whoever_pauses_may_do_some_at_once_again_but_no_more_for_a_long_pause() -> None:
    now = [100.0]
    pace = Pace(3, 4, clock=lambda: now[0])
    for _ in range(3):
        pace.count()
    now[0] += 3600
    for _ in range(3):
        assert pace.wait_s == 0
        pace.count()
    assert pace.wait_s == 0.25
