"""Laws of the listener: exact figures for sound whose arrival is given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.bench.listening import Heard, Listener, Malformed

RATE = 24_000


def sound(seconds: float, dbfs: float | None = -20.0) -> bytes:
    """A square wave, whose RMS is its height; None: silence."""
    height = 0.0 if dbfs is None else 32_768 * 10 ** (dbfs / 20)
    samples = np.where(np.arange(round(seconds * RATE)) % 48 < 24, height, -height)
    return np.round(samples).astype("<i2").tobytes()


def hear(*pieces: tuple[float, bytes], wav: bool = False) -> Heard:
    listener = Listener(RATE, wav=wav)
    for at_s, data in pieces:
        listener.feed(data, at_s)
    return listener.finish()


def test_sound_in_time_has_no_underrun_even_if_it_comes_at_the_last_moment() -> None:
    heard = hear((0.25, sound(0.5)), (0.75, sound(0.5)), (1.0, sound(0.5)))
    assert (heard.underruns, heard.stalled_s, heard.audio_s) == (0, 0.0, 1.5)
    assert heard.gaps_s == [0.5, 0.25]
    assert (heard.first_byte_s, heard.playable_s, heard.audible_s, heard.last_byte_s) == (0.25, 0.25, 0.25, 1.0)


def test_a_late_piece_is_one_underrun_after_which_the_listener_goes_on() -> None:
    heard = hear((0.25, sound(0.5)), (1.0, sound(0.5)), (1.5, sound(0.5)), (2.5, sound(0.5)))
    assert heard.underruns == 2
    assert heard.stalled_s == 0.25 + 0.5


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 4)), min_size=1, max_size=20))
def test_the_listener_ends_when_the_sound_and_all_silences_are_over(pieces: list[tuple[float, int]]) -> None:
    """Silences are as long as what a player with no buffer would wait, told another way."""
    arrivals = sorted(at_s for at_s, _ in pieces)
    heard = hear(*((at_s, sound(0.1 * tenths)) for at_s, (_, tenths) in zip(arrivals, pieces, strict=True)))
    ends = arrivals[0]
    for at_s, (_, tenths) in zip(arrivals, pieces, strict=True):
        ends = max(ends, at_s) + 0.1 * tenths
    assert arrivals[0] + heard.audio_s + heard.stalled_s == pytest.approx(ends)
    assert (heard.underruns > 0) == (heard.stalled_s > 0)


@pytest.mark.parametrize("size", [1, 7, 100, 961, 5000])
def test_sound_is_audible_where_two_windows_in_a_row_are_loud_however_it_is_cut(size: int) -> None:
    one_loud_window = sound(0.1, None) + sound(0.02) + sound(0.1, None)
    data = one_loud_window + sound(0.5)
    pieces = [(float(start), data[start : start + size]) for start in range(0, len(data), size)]
    heard = hear(*pieces)
    assert heard.onset_s == 0.22
    complete = round(0.26 * RATE) * 2  # bytes with both windows in them
    assert heard.audible_s == (complete - 1) // size * size


@pytest.mark.parametrize(("dbfs", "is_audible"), [(-44.8, True), (-45.2, False), (None, False), (0.0, True)])
def test_the_limit_of_loudness_is_45_decibels_under_full_scale(dbfs: float | None, is_audible: bool) -> None:
    assert (hear((0.0, sound(0.2, dbfs))).onset_s is not None) == is_audible


def wav(*, channels: int = 1, rate: int = RATE, more: bytes = b"") -> bytes:
    fmt = b"".join(
        number.to_bytes(size, "little")
        for number, size in ((1, 2), (channels, 2), (rate, 4), (2 * channels * rate, 4), (2 * channels, 2), (16, 2))
    )
    return b"RIFF\xff\xff\xff\xffWAVE" + more + b"fmt \x10\x00\x00\x00" + fmt + b"data\xff\xff\xff\xff"


@pytest.mark.parametrize("size", [1, 5, 44, 1000])
@pytest.mark.parametrize("more", [b"", b"LIST\x03\x00\x00\x00abc\x00"])
def test_a_wav_header_is_a_first_byte_but_nothing_to_play(size: int, more: bytes) -> None:
    header = wav(more=more)
    data = header + sound(0.1)
    heard = hear(*((float(start), data[start : start + size]) for start in range(0, len(data), size)), wav=True)
    assert heard.first_byte_s == 0.0
    assert heard.playable_s == (len(header) + 1) // size * size
    assert heard.audio_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("data", "is_wav"),
    [
        (sound(0.1)[:-1], False),
        (b'{"error": "..."}', True),
        (wav()[:30], True),
        (wav(channels=2) + sound(0.1), True),
        (wav(rate=16_000) + sound(0.1), True),
        (wav(more=b"LIST\xff\xff\x00\x00") + sound(0.1), True),
    ],
)
def test_what_isnt_the_sound_that_was_asked_for_is_malformed(data: bytes, is_wav: bool) -> None:
    with pytest.raises(Malformed):
        hear((0.0, data), wav=is_wav)


def test_nothing_is_nothing() -> None:
    assert hear() == Heard()
