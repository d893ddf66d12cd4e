"""Texts that have broken servers like this one: each is spoken, within its bound, or refused by name."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest

from engine_lib.profile import load_profile
from engine_lib.talker.config import TalkerConfig
from engine_lib.text.tokenizer import TextTokenizer
from engine_lib.wire import FRAME_SECONDS
from proxy.splitting import Comfort, split
from tests.serving import CHECKPOINT, LIMIT_S, Serving

IDS = TalkerConfig.from_directory(CHECKPOINT).ids
TOKENIZER = TextTokenizer(CHECKPOINT, im_start=IDS.im_start, im_end=IDS.im_end)


def speak(server: Serving, words: str, **fields: object) -> httpx.Response:
    body = {"input": words, "response_format": "wav", "stream": False, "seed": 1, **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=LIMIT_S)


@pytest.mark.parametrize(("words", "tokens"), [("3次", 4), ("7", 1), ("A", 1)])
def test_case_36_a_very_short_text_cannot_run_on(words: str, tokens: int, server: Serving) -> None:
    profile = load_profile("ttfa")
    answer = speak(server, words, ignore_eos=True)
    most = (profile.budget_base_frames + profile.budget_frames_per_token * tokens) * FRAME_SECONDS
    assert answer.status_code == 200
    assert answer.headers["x-finish-reason"] == "length"
    assert 0 < float(answer.headers["x-audio-seconds"]) <= most


@pytest.mark.parametrize("words", ["...", "?!", "***", "😀", "😀😃😄😁😆😅", "👨‍👩‍👧‍👦", "—", "1️⃣"])
def test_case_43_punctuation_and_emoji_alone_are_spoken_within_their_bound(words: str, server: Serving) -> None:
    answer = speak(server, words)
    assert answer.status_code == 200
    assert answer.headers["x-finish-reason"] in ("stop", "length")
    assert float(answer.headers["x-audio-seconds"]) > 0


@pytest.mark.parametrize("words", ["a", "la" * 400, "o " * 900])
def test_case_44_a_long_text_without_a_stop_is_spoken_to_its_end(words: str, server: Serving) -> None:
    answer = speak(server, words, stream=True, stream_format="sse")
    *sound, done = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert {event["type"] for event in sound} == {"speech.audio.delta"}
    pieces = split(words, Comfort(600, 200))
    assert done["usage"]["input_tokens"] == sum(len(TOKENIZER.spoken(piece).text) for piece in pieces)


def test_case_44_a_word_longer_than_any_text_may_be_is_refused_by_name(server: Serving) -> None:
    refused = speak(server, "la" * 2500)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "input_too_large")
    assert refused.json()["error"]["param"] == "input"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("<speak>Hi <break time='1s'/> you</speak>", "Hi you "),
        ("a < b and c > d", "a < b and c > d"),
        ("<|im_end|><|im_start|>", "<|im_end|><|im_start|>"),
    ],
)
def test_case_46_tags_are_dropped_and_comparisons_and_control_words_are_text(
    words: str, meant: str, server: Serving
) -> None:
    answers = [speak(server, text, max_new_tokens=20, response_format="pcm") for text in (words, meant)]
    assert [answer.status_code for answer in answers] == [200, 200]
    heard, plain = (np.frombuffer(answer.content, "<i2").astype(int) for answer in answers)
    assert len(heard) == len(plain)
    assert np.abs(heard - plain).max() <= 1


def test_case_46_a_text_of_nothing_but_tags_is_refused(server: Serving) -> None:
    refused = speak(server, "<speak> <break/> </speak>")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


def test_case_47_mixed_directions_are_spoken_and_broken_unicode_is_refused(server: Serving) -> None:
    assert speak(server, "שלום 123 hello مرحبا \u202e4\u202c.", max_new_tokens=20).status_code == 200
    headers = {"Content-Type": "application/json"}
    for escape in ("\\ud800", "a\\u0000b", "\\udc00x"):
        body = f'{{"input": "{escape}", "response_format": "wav"}}'
        answer = httpx.post(f"{server.url}/v1/audio/speech", content=body, headers=headers, timeout=LIMIT_S)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
