from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_lib.codec.model import Decoder
from engine_lib.codec.runner import Runner
from engine_lib.wire import SAMPLES_PER_FRAME
from tests.engine_lib.codec.conftest import TOKENIZER
from tests.golden import clones, golden, utterances, voice_of

TOLERANCE = 1e-4


def frames(name: str) -> np.ndarray:
    """Codes [frames, 16] of the codec golden."""
    return golden("codec")[f"{name}_codes"].T


def pieces(codes: np.ndarray, sizes: Iterable[int]) -> Iterator[np.ndarray]:
    """Consecutive pieces of the given sizes; the last size repeats, what's left over comes last."""
    sizes, size, done = iter(sizes), 0, 0
    while done < len(codes):
        size = next(sizes, size)
        yield codes[done : done + size]
        done += size


def chunked(runner: Runner, codes: np.ndarray, sizes: Iterable[int], slot: int = 0) -> np.ndarray:
    """Samples of one stream decoded in chunks of these sizes."""
    runner.reset(slot)
    return np.concatenate([runner.decode_float([slot], [piece])[0] for piece in pieces(codes, sizes)])


def steps_apart(left: np.ndarray, right: np.ndarray) -> int:
    """The largest difference between 16-bit samples."""
    assert left.shape == right.shape
    return int(np.abs(left.astype(np.int32) - right.astype(np.int32)).max())


@pytest.mark.parametrize("name", ["c7_wav", "c45_wav_full"])
def test_whole_decode_equals_the_official_one(name: str, runner: Runner) -> None:
    got = runner.decode_float([0], [frames(name[: name.index("_")])])[0]
    np.testing.assert_allclose(got, golden("codec")[name], rtol=0, atol=TOLERANCE)


def test_long_decode_equals_the_official_full_decode(runner: Runner) -> None:
    case = golden("codec")
    got = runner.decode_float([0], [frames("c330")])[0]
    tail = got[case.info["tail_start_sample"] :]
    np.testing.assert_allclose(tail, case["c330_wav_full_tail"], rtol=0, atol=TOLERANCE)


def test_first_chunk_of_the_official_chunked_decode_is_ours(runner: Runner) -> None:
    """Up to frame 300 the official decode has its whole context; behind it, it differs from its own full decode."""
    case = golden("codec")
    border = 300 * SAMPLES_PER_FRAME - case.info["tail_start_sample"]
    got = runner.decode_float([0], [frames("c330")])[0][case.info["tail_start_sample"] :][:border]
    np.testing.assert_allclose(got, case["c330_wav_official_tail"][:border], rtol=0, atol=TOLERANCE)


def test_batch_of_two_lengths_equals_the_official_batch(runner: Runner) -> None:
    case, codes = golden("codec"), frames("c45")
    first, second = runner.decode_float([5, 2], [codes[:9], codes[9:14]])
    np.testing.assert_allclose(first, case["batch_wav0"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(second, case["batch_wav1"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", utterances())
def test_codes_of_an_utterance_become_the_official_samples(name: str, runner: Runner) -> None:
    case = golden(name)
    got = runner.decode_float([0], [case["codes"]])[0]
    np.testing.assert_allclose(got, case["wav"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("split", [1, 2, 7, 44])
def test_chunked_decode_equals_whole_decode(split: int, runner: Runner) -> None:
    got = chunked(runner, frames("c45"), [split])
    np.testing.assert_allclose(got, golden("codec")["c45_wav_full"], rtol=0, atol=TOLERANCE)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_chunked_decode_equals_whole_decode_for_any_sizes(sizes: list[int], runner: Runner) -> None:
    got = chunked(runner, frames("c45"), sizes)
    np.testing.assert_allclose(got, golden("codec")["c45_wav_full"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("piece_frames", [1, 4, 45])
def test_pieces_of_a_long_chunk_leave_no_trace(piece_frames: int, make_runner: Callable[..., Runner]) -> None:
    runner = make_runner(piece_frames=piece_frames)
    got = runner.decode_float([0], [frames("c45")])[0]
    np.testing.assert_allclose(got, golden("codec")["c45_wav_full"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_any_position_and_length_equal_their_solo_decode(seed: int, runner: Runner) -> None:
    """Streams take turns at random: who is in a batch, in which order, with how many frames."""
    draw = np.random.default_rng(seed)
    streams = [draw.integers(0, runner.codebook_size, (int(draw.integers(20, 45)), 16)) for _ in range(5)]
    slots = draw.permutation(runner.slots)[:5].tolist()
    solo = [chunked(runner, codes, [len(codes)]) for codes in streams]
    for slot in slots:
        runner.reset(slot)
    got: list[list[np.ndarray]] = [[] for _ in streams]
    done = [0] * len(streams)
    while any(done[row] < len(codes) for row, codes in enumerate(streams)):
        going = [row for row in draw.permutation(5) if done[row] < len(streams[row]) and draw.random() < 0.7]
        takes = [streams[row][done[row] : done[row] + int(draw.integers(1, 9))] for row in going]
        decoded = runner.decode_float([slots[row] for row in going], takes)
        for row, take, samples in zip(going, takes, decoded, strict=True):
            assert len(samples) == len(take) * SAMPLES_PER_FRAME
            got[row].append(samples)
            done[row] += len(take)
    for row, alone in enumerate(solo):
        np.testing.assert_allclose(np.concatenate(got[row]), alone, rtol=0, atol=TOLERANCE)


def test_16_bit_samples_in_a_batch_are_within_one_step_of_solo(runner: Runner) -> None:
    codes = frames("c45")
    runner.reset(0)
    alone = runner.decode([0], [codes[:12]])[0]
    for slot in range(3):
        runner.reset(slot)
    together = runner.decode([1, 0, 2], [codes[20:28], codes[:12], codes[30:]])[1]
    assert steps_apart(alone, together) <= 1


def test_16_bit_samples_are_the_rounded_float_samples(runner: Runner) -> None:
    codes = frames("c45")
    wave = runner.decode_float([0], [codes])[0]
    runner.reset(0)
    pcm = runner.decode([0], [codes])[0]
    assert pcm.dtype == np.int16
    np.testing.assert_array_equal(pcm, np.round(wave * np.float32(32767)))
    assert wave.max() == 1.0, "this golden clamps: the end of the range is seen"
    assert pcm.max() == 32767


def test_equal_chunks_give_equal_bytes(runner: Runner) -> None:
    codes, twice = frames("c45"), []
    for slot in (0, 6):
        runner.reset(slot)
        twice.append(np.concatenate([runner.decode([slot], [piece])[0] for piece in pieces(codes, [1, 2, 4, 8])]))
    np.testing.assert_array_equal(*twice)


def test_a_reset_slot_remembers_nothing(runner: Runner) -> None:
    codes = frames("c45")
    fresh = runner.decode_float([4], [codes[:3]])[0]
    runner.decode_float([4], [codes[3:]])
    runner.reset(4)
    np.testing.assert_array_equal(runner.decode_float([4], [codes[:3]])[0], fresh)


def test_a_reset_slot_forgets_broken_state_too(runner: Runner) -> None:
    codes = frames("c45")
    fresh = runner.decode_float([4], [codes[:3]])[0]
    runner._store.numbers[4] = torch.nan
    runner.reset(4)
    np.testing.assert_array_equal(runner.decode_float([4], [codes[:3]])[0], fresh)


def test_a_reset_leaves_the_neighbours_alone(runner: Runner) -> None:
    codes = frames("c45")
    whole = chunked(runner, codes[:8], [8], slot=1)
    runner.reset(1)
    first = runner.decode_float([1], [codes[:4]])[0]
    runner.reset(0)
    runner.reset(2)
    second = runner.decode_float([1], [codes[4:8]])[0]
    np.testing.assert_allclose(np.concatenate([first, second]), whole, rtol=0, atol=TOLERANCE)


def test_no_frames_give_no_samples_and_keep_the_state(runner: Runner) -> None:
    codes = frames("c45")
    first = runner.decode_float([0], [codes[:4]])[0]
    nothing = runner.decode([0], [codes[:0]])[0]
    assert nothing.dtype == np.int16
    assert nothing.shape == (0,)
    assert runner.decode([], []) == []
    second = runner.decode_float([0], [codes[4:9]])[0]
    expected = golden("codec")["c45_wav_full"][: 9 * SAMPLES_PER_FRAME]
    np.testing.assert_allclose(np.concatenate([first, second]), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("sizes", [[25], [1, 2, 4, 8, 12]])
def test_case_29_error_at_chunk_borders_is_no_larger_than_inside(
    sizes: list[int], make_runner: Callable[..., Runner]
) -> None:
    """200 frames, against one decode of the whole; the first and last frame of each chunk against the others."""
    codes = frames("c330")[:200]
    runner = make_runner(piece_frames=200)
    whole = runner.decode_float([1], [codes])[0]
    error = np.abs(chunked(runner, codes, sizes) - whole).reshape(200, SAMPLES_PER_FRAME).max(axis=1)
    ends = np.cumsum([len(piece) for piece in pieces(codes, sizes)])
    starts = np.concatenate([[0], ends[:-1]])
    borders = np.unique(np.concatenate([starts, ends - 1]))
    inside = np.setdiff1d(np.arange(200), borders)
    float_noise = 1e-5
    assert error[borders].max() <= max(error[inside].max(), float_noise)
    assert error.max() <= TOLERANCE


def test_case_29_would_show_a_context_shorter_than_the_window(runner: Runner) -> None:
    """The official chunked decode restarts with little context: its border error is what case 29 must find."""
    case = golden("codec")
    wrong, right = case["c45_wav_chunk10_left4"], case["c45_wav_full"]
    error = np.abs(wrong - right).reshape(45, SAMPLES_PER_FRAME).max(axis=1)
    ours = np.abs(chunked(runner, frames("c45"), [10]) - right).reshape(45, SAMPLES_PER_FRAME).max(axis=1)
    for start, end in pairwise([10, 20, 30, 40, 45]):
        assert error[start:end].max() > 100 * ours[start:end].max()


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, TOLERANCE), (torch.bfloat16, 0.1)])
def test_cuda_decode_equals_the_official_one(dtype: torch.dtype, tolerance: float) -> None:
    runner = Runner(Decoder.from_directory(TOKENIZER, dtype, torch.device("cuda")), 4)
    codes, whole = frames("c45"), golden("codec")["c45_wav_full"]
    for sizes in ([45], [7], [1, 2, 4, 8]):
        np.testing.assert_allclose(chunked(runner, codes, sizes, slot=2), whole, rtol=0, atol=tolerance)
    runner.reset(0)
    runner.reset(3)
    first, second = runner.decode_float([3, 0], [codes[:9], codes[9:14]])
    np.testing.assert_allclose(first, golden("codec")["batch_wav0"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(second, golden("codec")["batch_wav1"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("split", [[1] * 30, [3, 1, 7], [400]])
@pytest.mark.parametrize("name", clones())
def test_case_30_a_cloned_voice_sounds_as_the_official_one_from_its_first_sample(name: str, split, runner) -> None:
    case = golden(name)
    voice = voice_of(case)
    if len(voice.codes):
        runner.prime(0, voice.codes)
    else:
        runner.reset(0)
    codes, pieces = case["codes"].astype(np.int32), []
    for frames in split:
        pieces += runner.decode_float([0], [codes[:frames]])
        codes = codes[frames:]
    pieces += runner.decode_float([0], [codes])
    np.testing.assert_allclose(np.concatenate(pieces), case["wav"], rtol=0, atol=5e-5)


def test_a_primed_state_from_memory_equals_the_one_from_decoding(runner) -> None:
    voice = voice_of(golden("bc_icl_ns"))
    codes = golden("bc_icl_ns")["codes"].astype(np.int32)
    sounds = []
    for slot in (0, 1):  # the second time it's known
        runner.prime(slot, voice.codes)
        sounds += runner.decode([slot], [codes])
    np.testing.assert_array_equal(*sounds)


def test_only_so_many_primed_states_are_kept(decoder) -> None:
    runner = Runner(decoder, 2, primed=3)
    for number in range(10):
        runner.prime(0, np.full((2, 16), number, np.int32))
    assert len(runner._primed) == 3
