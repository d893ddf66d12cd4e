"""The model repository on a real Triton server, seen by a plain Triton client."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import httpx
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from engine_lib import wire
from tests.e2e.triton import Session, ask
from tests.golden import golden, utterances
from tests.serving import ROOT, Serving, wait_for

TEXT = "Hello there, this is a tiny test of speech."
GREEDY = {"do_sample": False, "subtalker_dosample": False}
ENDLESS = {"ignore_eos": True, "max_new_tokens": 1000}
GAUGES = ("qwen3_tts_active_streams", "qwen3_tts_waiting_streams", "qwen3_tts_codec_active_streams")


@pytest.fixture
def triton(server: Serving) -> str:
    return server.triton_grpc


@pytest.fixture
def is_idle(server: Serving) -> Callable[[], bool]:
    """Whether no stream is left in talker or codec."""

    def idle() -> bool:
        text = httpx.get(server.facts["triton_metrics"]).text
        values = {name: re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for name in GAUGES}
        assert all(values.values()), text
        return all(float(match[1]) == 0 for match in values.values() if match)

    return idle


def official(case) -> dict:
    asked = dict(case.info["request"])
    return {"voice": asked.pop("speaker"), **asked, **GREEDY, "max_new_tokens": case.info["max_new_tokens"]}


@pytest.mark.parametrize("name", [name for name in utterances() if name.startswith("cv")])
def test_the_ensemble_speaks_the_official_samples(name: str, triton: str) -> None:
    case = golden(name)
    options = official(case)
    answer = ask(triton, "tts", options.pop("text"), **options)
    expected = np.round(np.clip(case["wav"], -1, 1) * 32767)
    assert len(answer.pcm) == len(expected)
    assert np.abs(answer.pcm - expected).max() <= 4  # 1e-4 of full scale, as for float samples


def requests(count: int) -> list[tuple[str, dict]]:
    """Different texts, voices, seeds and rules, always the same ones."""
    dice = random.Random(3)
    words = TEXT.split()
    return [
        (
            " ".join(dice.choices(words, k=dice.randint(1, 12))),
            {
                "seed": number,
                "voice": dice.choice(["serena", "ryan", "eric"]),
                "temperature": dice.choice([0, 0.9, 1.5]),
                "non_streaming_mode": dice.random() < 0.5,
                "max_new_tokens": dice.choice([8, 30]),
                "ignore_eos": True,
            },
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("model", ["talker", "tts"])
def test_32_mixed_requests_at_once_say_what_each_says_alone(model: str, triton: str) -> None:
    asked = requests(32)
    with Session(triton) as session:
        for number, (words, options) in enumerate(asked):
            session.send(model, words, str(number), **options)
        together = session.finish()
    for number, (words, options) in list(enumerate(asked))[::3]:
        alone = ask(triton, model, words, **options)
        if model == "talker":
            np.testing.assert_array_equal(together[str(number)].codes, alone.codes)
        else:
            assert len(alone.pcm) == len(together[str(number)].pcm)
            assert np.abs(together[str(number)].pcm.astype(int) - alone.pcm).max() <= 1


def test_case_26_indices_of_100_streams_rise_one_by_one(triton: str) -> None:
    with Session(triton) as session:
        for number in range(100):
            session.send(
                "tts", TEXT, str(number), seed=number, stream_chunk_schedule=[1], **ENDLESS | {"max_new_tokens": 12}
            )
        for answer in session.finish().values():
            assert answer.indices == list(range(len(answer.indices)))
            assert len(answer.indices) > 2


def test_case_27_the_same_request_says_the_same_five_times(triton: str) -> None:
    first, *others = (ask(triton, "tts", TEXT, seed=11, max_new_tokens=60).pcm for _ in range(5))
    assert len(first) > 0
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("most", [2, 3, 40])
def test_case_24_every_request_has_exactly_one_end(most: int, triton: str) -> None:
    with Session(triton) as session:
        for number in range(20):
            session.send("tts", TEXT, str(number), seed=number, max_new_tokens=most)
        answers = session.finish().values()
    for answer in answers:
        assert answer.lasts.count(True) == 1
        assert answer.lasts[-1]
        assert answer.reason in ("stop", "length")


@pytest.mark.parametrize("outputs", [["PCM"], ["LAST"], ["FINISH_REASON", "USAGE"], ["PCM", "INDEX", "LAST"]])
def test_case_25_any_subset_of_outputs_may_be_asked_for(outputs: list[str], triton: str) -> None:
    with Session(triton) as session:
        session.send("tts", TEXT, outputs=outputs, seed=1, max_new_tokens=10)
        answer = session.finish()["1"]
    assert answer.tensors
    assert all(set(response) == set(outputs) for response in answer.tensors)


@pytest.mark.parametrize("action", ["cancel", "close"])
def test_a_client_that_leaves_frees_its_slots(action: str, triton: str, is_idle: Callable[[], bool]) -> None:
    with Session(triton) as session:
        session.request("tts", "1", None, TEXT=TEXT, OPTIONS=json.dumps(ENDLESS), STREAM_ID=f"leaves-by-{action}")
        session.receive()
        wait_for(lambda: not is_idle())  # the page comes later
        if action == "cancel":
            session.act("cancel", f"leaves-by-{action}")
            assert session.finish()["1"].reason == "cancelled"
    wait_for(is_idle)


def test_a_refused_request_names_its_field_and_harms_no_other(triton: str) -> None:
    with Session(triton) as session:
        session.send("tts", TEXT, "good", seed=1, max_new_tokens=20)
        for number, options in enumerate([{"voice": "nobody"}, {"seed": -1}, {"language": "klingon"}, {"top_p": 0}]):
            with Session(triton) as other:
                other.send("tts", TEXT, str(number), **options)
                with pytest.raises(InferenceServerException, match=next(iter(options))):
                    other.receive()
        assert session.finish()["good"].reason in ("stop", "length")


def test_tensors_that_cannot_be_read_are_refused(triton: str) -> None:
    with Session(triton) as session:
        session.request("tts", "1", None, TEXT=" ", OPTIONS="{}")
        with pytest.raises(InferenceServerException, match="blank"):
            session.receive()
    with Session(triton) as session:
        session.request("tts", "1", None, TEXT=TEXT, OPTIONS="[1]")
        with pytest.raises(InferenceServerException, match="JSON object"):
            session.receive()
    with Session(triton) as session:
        session.request("talker", "1", None, TEXT=TEXT, ACTION="dance")
        with pytest.raises(InferenceServerException, match="ACTION"):
            session.receive()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "perf_analyzer_configs" / "inputs").glob("*.json")), ids=lambda path: path.name
)
def test_case_56_inputs_of_perf_analyzer_are_spoken_in_several_responses(path, triton: str) -> None:
    entry = json.loads(path.read_text(encoding="utf-8"))["data"][0]
    with Session(triton) as session:
        session.request("tts", "1", None, **{name: value[0] for name, value in entry.items()})
        answer = session.finish()["1"]
    assert len(answer.tensors) > 1
    assert len(answer.pcm) == (json.loads(entry["OPTIONS"][0])["max_new_tokens"] - 1) * wire.SAMPLES_PER_FRAME


def test_triton_counts_what_the_engines_do(server: Serving) -> None:
    series = [
        'qwen3_tts_streams_total{finish_reason="length"}',
        "qwen3_tts_frames_total",
        "qwen3_tts_step_seconds_count",
        "qwen3_tts_step_rows_count",
        "qwen3_tts_first_chunk_seconds_count",
        "qwen3_tts_codec_frames_total",
        "qwen3_tts_codec_batch_rows_count",
        "qwen3_tts_codec_batch_seconds_count",
    ]
    before = server.counted(*series)
    ask(server.triton_grpc, "tts", TEXT, ignore_eos=True, max_new_tokens=11, stream_chunk_schedule=[5])
    least = dict(zip(series, [1, 10, 10, 10, 1, 10, 2, 2], strict=True))
    wait_for(
        lambda: all(now >= before[name] + least[name] for name, now in server.counted(*series).items()),
    )
