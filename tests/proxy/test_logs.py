"""Laws of the log: a line for each request to speak, and never what was spoken."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable

import httpx
import pytest

from proxy.logs import JsonFormatter, TextFormatter
from proxy.utterance import PATH
from tests.proxy.live_client import live
from tests.proxy.test_speech import asking
from tests.serving import Serving, wait_for

Speak = Callable[..., httpx.Response]


def test_each_request_has_one_line_with_its_numbers(scripted: Serving, speak: Speak) -> None:
    answer = speak("frames=10 secret", voice="ryan", response_format="wav")
    (line,) = scripted.lines_of(answer.headers["x-request-id"])
    told = dict(pair.split("=") for pair in line.split() if "=" in pair)
    assert told.keys() == {
        "id", "voice", "format", "characters", "frames", "first_audio_s", "audio_s", "finish", "status", "seconds"
    }  # fmt: skip
    assert told["voice"] == "ryan"
    assert told["format"] == "wav"
    assert told["characters"] == "16"
    assert told["frames"] == "10"
    assert told["audio_s"] == "0.8"
    assert told["finish"] == "stop"
    assert told["status"] == "200"
    assert 0 < float(told["first_audio_s"]) <= float(told["seconds"])


@pytest.mark.parametrize(
    ("fields", "status", "finish"),
    [
        ({"script": "frames=2", "voice": "nobody"}, 400, "invalid_value"),
        ({"input": " "}, 400, None),
        ({"input": "refuse=1"}, 429, "overloaded"),
    ],
)
def test_a_refused_request_has_its_line_too(
    scripted: Serving, speak: Speak, fields: dict[str, str], status: int, finish: str | None
) -> None:
    (line,) = scripted.lines_of(speak(**{"script": "frames=1", **fields}).headers["x-request-id"])
    assert f"status={status}" in line
    assert (f"finish={finish}" in line) == (finish is not None)


def test_a_client_that_left_is_seen_in_the_log(scripted: Serving) -> None:
    before = scripted.output.count("finish=left")
    with asking(scripted.url, {"input": "frames=6 stall=5"}) as connection:
        assert connection.recv(1)
    wait_for(lambda: scripted.output.count("finish=left") > before)


def test_no_text_is_in_the_log(scripted: Serving, speak: Speak) -> None:
    for fields in (
        {},
        {"instructions": "murmur-xyzzy"},
        {"voice": "nobody-xyzzy"},
        {"temperature": "xyzzy"},
        {"input": "xyzzy\0"},
    ):
        answer = speak(**{"script": "xyzzy", **fields})
        scripted.lines_of(answer.headers["x-request-id"])
    assert "xyzzy" not in scripted.output.replace("voice=nobody-xyzzy", "")


def lines_without_id(server: Serving) -> list[str]:
    """The log's lines of live utterances that were over before they began."""
    return [line for line in server.output.splitlines() if f"INFO {PATH}" in line and " id=" not in line]


async def test_each_live_utterance_has_one_line_with_its_numbers_and_without_its_text(scripted: Serving) -> None:
    before = lines_without_id(scripted)
    async with live(scripted.url) as client:
        done = await client.say("plugh plugh plover", voice="ryan")
        await client.start("stall=1")
        await client.append("plugh plugh ")
        await client.until_sound()
        await client.cancel()
        stopped = await client.until("response.done")
        await client.start(voice="nobody")
        assert (await client.next())["error"]["code"] == "invalid_value"
    await asyncio.to_thread(wait_for, lambda: len(lines_without_id(scripted)) > len(before))
    (refused_line,) = lines_without_id(scripted)[len(before) :]
    (spoken_line,), (cancelled_line,) = (scripted.lines_of(ended["request_id"]) for ended in (done, stopped))
    spoken, cancelled, refused = (
        dict(pair.split("=") for pair in line.split() if "=" in pair)
        for line in (spoken_line, cancelled_line, refused_line)
    )
    assert spoken.keys() == {
        "id", "voice", "format", "characters", "frames", "first_audio_s", "audio_s", "finish", "seconds"
    }  # fmt: skip
    assert spoken["id"] == done["request_id"]
    assert (spoken["voice"], spoken["format"], spoken["characters"]) == ("ryan", "pcm", "18")
    assert (spoken["audio_s"], spoken["finish"]) == ("0.24", "stop")
    assert 0 < float(spoken["first_audio_s"]) <= float(spoken["seconds"])
    assert cancelled["finish"] == "cancelled"
    assert refused == {"finish": "invalid_value"}
    assert "plugh" not in scripted.output


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("proxy", logging.INFO, "", 0, message, None, None)
    made.__dict__["fields"] = fields
    return made


def test_a_value_cannot_forge_a_line_or_a_field() -> None:
    line = TextFormatter().format(record("said", voice='a" b=c\nd', empty="", left_out=None))
    assert line.endswith(r'INFO said voice="a\" b=c\nd" empty=""')
    assert "\n" not in line
    assert json.loads(JsonFormatter().format(record("said", voice="é\n")))["voice"] == "é\n"


def test_a_bug_keeps_its_traceback_in_both_forms() -> None:
    made = record("a bug")
    try:
        raise ValueError("odd")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: odd" in json.loads(JsonFormatter().format(made))["traceback"]
    assert "ValueError: odd" in TextFormatter().format(made)
