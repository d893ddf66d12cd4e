from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch

from engine_lib.codec import CodecJob, Engine, PcmChunk
from engine_lib.codec.runner import Codes, Pcm, Runner
from engine_lib.errors import GenerationFailed, NotReady, ServiceError
from engine_lib.profile import Profile
from engine_lib.wire import SAMPLES_PER_FRAME
from tests.golden import CHECKPOINT, golden

PATIENCE_S = 120  # a bound on failure, never waited out by a sound engine
Answer = PcmChunk | ServiceError


class Client:
    """Makes jobs and keeps their answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: queue.Queue[tuple[tuple[str, int], Answer]] = queue.Queue()

    def send(self, stream: str, index: int, codes: np.ndarray, *, last: bool = False, reason: str = "") -> None:
        self.engine.submit(
            CodecJob(
                stream, index, codes.astype(np.int32), last, reason, np.array([5, index], dtype=np.int32),
                lambda answer: self.answers.put(((stream, index), answer)),
            )
        )  # fmt: skip

    def take(self, count: int = 1) -> dict[tuple[str, int], Answer]:
        """The next `count` answers; each name once."""
        got = [self.answers.get(timeout=PATIENCE_S) for _ in range(count)]
        assert len(dict(got)) == count
        return dict(got)

    def heartbeat(self) -> None:
        """Returns after the loop has been round: what was sent before is sorted in, what was idle has expired."""
        for _ in range(2):
            self.send("", 0, np.zeros((0, 16)))
            assert list(self.take()) == [("", 0)]


class ScriptedRunner:
    """In a Runner's place: says what it was asked, blocks or fails on command; samples are a frame's first code."""

    slots = 6
    codebook_size = 64
    free_padding = 0

    def __init__(self) -> None:
        self.batches: list[list[int]] = []  # first code of each row
        self.resets: list[int] = []
        self.entered = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.failure: Exception | None = None

    def reset(self, slot: int) -> None:
        self.resets.append(slot)

    def decode(self, slots: Sequence[int], codes: Sequence[Codes]) -> list[Pcm]:
        assert len(set(slots)) == len(slots)
        self.batches.append([int(row[0, 0]) for row in codes])
        self.entered.release()
        assert self.allowed.acquire(timeout=PATIENCE_S)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return [np.repeat(row[:, 0], SAMPLES_PER_FRAME).astype(np.int16) for row in codes]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def scripted() -> ScriptedRunner:
    return ScriptedRunner()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(scripted: ScriptedRunner, clock: Clock) -> Iterator[Client]:
    profile = Profile(codec_rows=3, codec_idle_timeout_s=10.0, withhold_silent_first_frame=False)
    with Engine(scripted, profile, clock=clock) as engine:
        yield Client(engine)
        scripted.allowed.release(1000)


def chunk(mark: int, frames: int = 1) -> np.ndarray:
    return np.full((frames, 16), mark)


def pcm(answer: Answer) -> np.ndarray:
    assert isinstance(answer, PcmChunk), answer
    return answer.pcm


def hold(client: Client, scripted: ScriptedRunner) -> None:
    """Let the engine enter a batch and stay there, so that what comes next piles up."""
    client.send("held", 0, chunk(63), last=True, reason="stop")
    while [63] not in scripted.batches:
        assert scripted.entered.acquire(timeout=PATIENCE_S)


def test_what_piles_up_is_batched_and_first_chunks_overtake(client: Client, scripted: ScriptedRunner) -> None:
    scripted.allowed.release(1)
    client.send("a", 0, chunk(1))
    client.take()
    hold(client, scripted)
    client.send("a", 1, chunk(2))
    client.send("a", 2, chunk(3))
    for mark, stream in ((10, "b"), (20, "c"), (30, "d")):
        client.send(stream, 0, chunk(mark), last=True, reason="stop")
    scripted.allowed.release(10)
    client.take(6)
    assert scripted.batches == [[1], [63], [10, 20, 30], [2], [3]]
    assert client.engine.metrics.batches == 5
    assert client.engine.metrics.rows == 7
    assert client.engine.metrics.frames == 7


def test_cancel_from_another_thread_frees_the_slot_and_answers_all(client: Client, scripted: ScriptedRunner) -> None:
    client.send("a", 0, chunk(1))
    assert scripted.entered.acquire(timeout=PATIENCE_S)
    assert client.engine.active == 1
    client.send("a", 1, chunk(2))
    client.engine.cancel("a")
    client.send("a", 2, chunk(3), last=True, reason="cancelled")
    scripted.allowed.release(1)
    answers = client.take(3)
    assert len(pcm(answers["a", 0])) == SAMPLES_PER_FRAME
    assert len(pcm(answers["a", 1])) == len(pcm(answers["a", 2])) == 0
    assert client.engine.active == 0
    assert scripted.batches == [[1]]


def test_an_idle_stream_loses_its_slot(client: Client, scripted: ScriptedRunner, clock: Clock) -> None:
    scripted.allowed.release(2)
    client.send("a", 0, chunk(1))
    client.take()
    clock.now = 9.9
    client.heartbeat()
    assert client.engine.active == 1
    clock.now = 10.0
    client.heartbeat()
    assert client.engine.active == 0
    assert client.engine.metrics.timeouts == 1
    client.send("a", 1, chunk(2), last=True, reason="stop")
    assert isinstance(client.take()["a", 1], GenerationFailed)


def test_an_idle_stream_expires_without_any_message() -> None:
    scripted = ScriptedRunner()
    scripted.allowed.release(1)
    with Engine(scripted, Profile(codec_idle_timeout_s=0.05)) as engine:
        client = Client(engine)
        client.send("a", 0, chunk(1))
        client.send("a", 2, chunk(3))
        answers = client.take(2)
    assert isinstance(answers["a", 0], PcmChunk)
    assert isinstance(answers["a", 2], GenerationFailed)


def test_a_failed_batch_fails_its_streams_only_and_is_logged(
    client: Client, scripted: ScriptedRunner, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.allowed.release(1)
    client.send("sound", 0, chunk(1))
    client.take()
    hold(client, scripted)
    for stream in ("a", "b", "c"):
        client.send(stream, 0, chunk(2))
    client.send("sound", 1, chunk(3))
    scripted.allowed.release(1)
    client.take()
    while [2, 2, 2] not in scripted.batches:
        assert scripted.entered.acquire(timeout=PATIENCE_S)
    scripted.failure = RuntimeError("out of memory")
    with caplog.at_level(logging.ERROR):
        scripted.allowed.release(10)
        answers = client.take(4)
    assert all(isinstance(answers[stream, 0], GenerationFailed) for stream in ("a", "b", "c"))
    assert len(pcm(answers["sound", 1])) == SAMPLES_PER_FRAME
    assert "a, b, c" in caplog.text
    assert "out of memory" in caplog.text
    assert "out of memory" not in str(answers["a", 0])
    assert client.engine.metrics.failures == 3
    client.heartbeat()
    assert client.engine.active == 1


@pytest.mark.parametrize("wrong", [np.full((2, 16), 64), np.full((2, 16), -1), np.zeros((2, 15)), np.zeros(16)])
def test_wrong_codes_fail_their_stream_and_no_neighbour(
    wrong: np.ndarray, client: Client, scripted: ScriptedRunner
) -> None:
    hold(client, scripted)
    client.send("wrong", 0, wrong)
    client.send("wrong", 1, chunk(1))
    client.send("right", 0, chunk(2, len(wrong)))
    scripted.allowed.release(10)
    answers = client.take(4)
    assert isinstance(answers["wrong", 0], GenerationFailed)
    assert isinstance(answers["wrong", 1], GenerationFailed)
    assert len(pcm(answers["right", 0])) == len(wrong) * SAMPLES_PER_FRAME
    assert client.engine.metrics.failures == 1
    client.heartbeat()
    assert client.engine.active == 1


def test_a_receiver_that_breaks_harms_nobody(
    client: Client, scripted: ScriptedRunner, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(answer: Answer) -> None:
        raise BrokenPipeError("gone")

    scripted.allowed.release(10)
    client.engine.submit(CodecJob("a", 0, chunk(1).astype(np.int32), True, "stop", np.zeros(2, np.int32), broken))
    client.send("b", 0, chunk(2), last=True, reason="stop")
    assert len(pcm(client.take()["b", 0])) == SAMPLES_PER_FRAME
    assert "gone" in caplog.text


def test_closing_answers_what_waits_and_what_comes_after() -> None:
    scripted = ScriptedRunner()
    engine = Engine(scripted, Profile(withhold_silent_first_frame=False))
    client = Client(engine)
    client.send("a", 0, chunk(1))
    assert scripted.entered.acquire(timeout=PATIENCE_S)
    client.send("a", 1, chunk(2))
    client.send("b", 0, chunk(2))
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing_is_known = False
    while not closing_is_known:  # heartbeats wait for the held batch, but are refused once the engine is closing
        client.send("", 0, np.zeros((0, 16)))
        closing_is_known = not client.answers.empty()
    scripted.allowed.release(10)
    closing.join(PATIENCE_S)
    client.send("late", 0, chunk(3))
    answers = dict(client.answers.get(timeout=PATIENCE_S) for _ in range(client.answers.qsize()))
    assert isinstance(answers["a", 0], PcmChunk)
    assert all(isinstance(answers[name], NotReady) for name in (("a", 1), ("b", 0), ("late", 0)))
    engine.close()
    assert engine.active == 0


@pytest.mark.parametrize(
    ("peak", "withhold", "kept"),
    [(103, True, 1), (-103, True, 1), (104, True, 2), (-104, True, 2), (0, False, 2), (-32768, True, 2)],
)
def test_a_first_frame_under_minus_50_dbfs_is_withheld(peak: int, withhold: bool, kept: int) -> None:
    class OnePeak(ScriptedRunner):
        def decode(self, slots: Sequence[int], codes: Sequence[Codes]) -> list[Pcm]:
            samples = super().decode(slots, codes)
            samples[0][:] = 0
            samples[0][SAMPLES_PER_FRAME - 1] = peak
            return samples

    scripted = OnePeak()
    scripted.allowed.release(2)
    with Engine(scripted, Profile(withhold_silent_first_frame=withhold)) as engine:
        client = Client(engine)
        client.send("a", 0, chunk(1, 2))
        client.send("a", 1, chunk(1, 2))
        answers = client.take(2)
    assert len(pcm(answers["a", 0])) == kept * SAMPLES_PER_FRAME
    assert len(pcm(answers["a", 1])) == 2 * SAMPLES_PER_FRAME, "only the first frame may be withheld"


def test_a_withheld_only_frame_leaves_an_empty_chunk() -> None:
    scripted = ScriptedRunner()
    scripted.allowed.release(1)
    with Engine(scripted, Profile()) as engine:
        client = Client(engine)
        client.send("a", 0, chunk(0), last=True, reason="stop")
        answer = client.take()["a", 0]
    assert isinstance(answer, PcmChunk)
    assert len(answer.pcm) == 0
    assert (answer.index, answer.last, answer.finish_reason, answer.usage.tolist()) == (0, True, "stop", [5, 0])


@pytest.fixture(scope="module")
def real_engine() -> Iterator[Engine]:
    profile = Profile(max_active=3, codec_rows=4)
    with Engine.from_checkpoint(CHECKPOINT, profile, torch.device("cpu")) as engine:
        yield engine


def test_many_streams_at_once_each_get_their_solo_samples(
    real_engine: Engine, make_runner: Callable[..., Runner]
) -> None:
    """More streams than slots, from several threads, chunk sizes at random: nothing lost, mixed up or out of order."""
    draw = np.random.default_rng(7)
    streams = {f"s{n}": draw.integers(0, 64, (int(draw.integers(3, 20)), 16)) for n in range(12)}
    runner = make_runner()
    solo = {}
    for name, codes in streams.items():
        runner.reset(0)
        solo[name] = runner.decode([0], [codes])[0]
    client = Client(real_engine)
    counts = {}
    with ThreadPoolExecutor(4) as pool:
        for name, codes in streams.items():
            cuts = sorted({0, len(codes), *draw.integers(1, len(codes), 3).tolist()})
            counts[name] = len(cuts) - 1
            for index, (start, end) in enumerate(pairwise(cuts)):
                last = end == len(codes)
                pool.submit(client.send, name, index, codes[start:end], last=last, reason="stop" if last else "")
    answers = client.take(sum(counts.values()))
    client.heartbeat()
    assert real_engine.active == 0
    for name, count in counts.items():
        got = np.concatenate([pcm(answers[name, index]) for index in range(count)])
        assert np.abs(got.astype(np.int32) - solo[name]).max() <= 1


def test_an_utterance_through_the_engine_equals_the_official_samples(real_engine: Engine) -> None:
    case, client = golden("cv_plain_ns"), Client(real_engine)
    codes = case["codes"]
    for index in range(len(codes)):
        last = index == len(codes) - 1
        client.send("golden", index, codes[index : index + 1], last=last, reason="stop" if last else "")
    answers = client.take(len(codes))
    got = np.concatenate([pcm(answers["golden", index]) for index in range(len(codes))])
    assert np.abs(got - case["wav"] * 32767).max() <= 4, "1e-4 of full scale"
