"""What a listener without a buffer hears."""

from __future__ import annotations

import pytest

from proxy.playback import Playback


def played(*pieces: tuple[float, float]) -> Playback:
    playback = Playback()
    for arrived, seconds in pieces:
        playback.hear(arrived, seconds)
    return playback


def test_sound_that_comes_in_time_has_no_gap() -> None:
    heard = played((10, 1), (10.2, 1), (11.9, 1), (13, 0.5))
    assert (heard.underruns, heard.silent_s, heard.last) == (0, 0, 13)


def test_each_piece_that_comes_late_is_a_gap_as_long_as_it_is_late() -> None:
    heard = played((10, 1), (11.5, 1), (12.4, 1), (14, 1))
    assert heard.underruns == 2
    assert heard.silent_s == pytest.approx(0.5 + 0.5)


def test_pieces_without_sound_are_not_heard() -> None:
    heard = played((1, 0), (10, 1), (20, 0))
    assert (heard.underruns, heard.last) == (0, 10)
