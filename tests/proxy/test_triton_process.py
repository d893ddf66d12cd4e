"""When a Triton that died is started again."""

from __future__ import annotations

from proxy.triton_process import STEADY_S, Backoff


def test_pauses_double_up_to_a_limit_and_are_short_again_after_a_server_that_lasted() -> None:
    backoff = Backoff()
    assert [backoff.pause_s(0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [backoff.pause_s(lasted_s) for lasted_s in (STEADY_S + 1, 0, STEADY_S)] == [1, 2, 4]
