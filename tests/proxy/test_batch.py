"""Laws of a batch. A real server with scripted models."""

from __future__ import annotations

import base64
import io
import json
import socket
import zipfile
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from proxy.triton_client import TritonClient
from tests.proxy.test_speech import FORMATS
from tests.proxy.test_triton_client import until
from tests.serving import LIMIT_S, Serving

PATH = "/v1/audio/speech/batch"
Post = Callable[..., httpx.Response]


@pytest.fixture
def post(http: httpx.Client) -> Post:
    """POST a batch of these items with common fields."""

    def send(*items: Any, headers: dict[str, str] | None = None, **common: Any) -> httpx.Response:
        return http.post(PATH, json={"items": items, **common}, headers=headers)

    return send


def test_each_item_is_what_it_would_be_alone(post: Post, speak: Callable[..., httpx.Response]) -> None:
    answer = post({"input": "frames=3"}, {"input": "frames=5 chunk=2", "response_format": "wav"}, response_format="pcm")
    first, second = answer.json()["results"]
    assert base64.b64decode(first["audio"]) == speak("frames=3", response_format="pcm").content
    assert base64.b64decode(second["audio"]) == speak("frames=5", response_format="wav", stream=False).content
    assert (first["index"], first["format"], first["content_type"]) == (0, "pcm", "audio/pcm")
    assert (second["index"], second["format"], second["content_type"]) == (1, "wav", "audio/wav")
    assert second["audio_seconds"] == pytest.approx(0.4)
    assert second["usage"] == {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
    assert second["finish_reason"] == "stop"


BAD: list[tuple[Any, int, str | None]] = [
    ({"input": ""}, 400, "input"),
    ({"input": "   "}, 400, "input"),
    ({"input": "\n\n\n"}, 400, "input"),
    ({"input": "hi", "voice": ""}, 400, "voice"),
    ({"input": "hi", "voice": "nobody"}, 400, "voice"),
    ({"input": "hi", "response_format": "ogg"}, 400, "response_format"),
    ({"input": "hi", "speed": 0}, 400, "speed"),
    ({"input": "hi", "model": "gpt-5"}, 404, "model"),
    ({"input": "x" * 5000}, 400, "input"),
    ({}, 400, "input"),
    ("hi", 400, "items"),
    (None, 400, "items"),
    ({"input": "refuse=1"}, 429, None),
    ({"input": "fail=2"}, 500, None),
]


@pytest.mark.parametrize(("item", "status", "param"), BAD)
def test_case_1_a_batch_of_which_nothing_was_spoken_has_the_status_of_its_error(
    post: Post, item: Any, status: int, param: str | None
) -> None:
    answer = post(item)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    (result,) = answer.json()["results"]
    assert result == {"index": 0, "status": status, "error": answer.json()["error"]}


@pytest.mark.parametrize(("item", "status", "param"), BAD)
def test_a_bad_item_does_not_hurt_its_neighbours(post: Post, item: Any, status: int, param: str | None) -> None:
    answer = post({"input": "frames=2"}, item, {"input": "frames=3"}, response_format="pcm" if item != {} else None)
    assert answer.status_code == 200
    good, bad, other = answer.json()["results"]
    assert good["usage"]["output_tokens"] == 2
    assert other["usage"]["output_tokens"] == 3
    assert (bad["index"], bad["status"], bad["error"]["param"]) == (1, status, param)
    assert "audio" not in bad


@pytest.mark.parametrize("items", [None, "hi", {}, [], [{"input": "hi"}] * 33])
def test_a_batch_that_is_none_is_refused(http: httpx.Client, items: Any) -> None:
    answer = http.post(PATH, json={"items": items})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "items"


def test_32_items_are_spoken(post: Post) -> None:
    results = post(*[{"input": f"frames={n + 1}"} for n in range(32)], response_format="pcm").json()["results"]
    assert [result["usage"]["output_tokens"] for result in results] == [n + 1 for n in range(32)]
    assert len({result["seed"] for result in results}) == 32


def test_an_item_beats_a_default_by_either_name_and_null_leaves_it(post: Post) -> None:
    results = post(
        {"input": "frames=1", "speaker": "ryan"}, {"input": "frames=1", "voice": None}, voice="nobody", seed=5
    ).json()["results"]
    assert [result["status"] for result in results] == [200, 400]
    assert results[0]["seed"] == 5


def test_a_zip_has_the_files_that_its_manifest_names(post: Post, speak: Callable[..., httpx.Response]) -> None:
    items = [{"input": "frames=10", "response_format": form} for form in FORMATS]
    answer = post(*items, {"input": " "}, headers={"Accept": "application/zip"})
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        *spoken, failed = json.loads(archive.read("manifest.json"))["results"]
        assert sorted(archive.namelist()) == sorted(["manifest.json", *(entry["file"] for entry in spoken)])
        for entry, (form, (content_type, start)) in zip(spoken, FORMATS.items(), strict=True):
            assert entry["file"].endswith(f".{form}")
            assert entry["content_type"] == content_type
            assert archive.read(entry["file"]).startswith(start)
    assert failed["error"]["code"] == "empty_input"


async def test_a_client_that_leaves_ends_all_items(scripted: Serving, triton: TritonClient) -> None:
    body = json.dumps({"items": [{"input": "stall=1"}] * 3})
    host, port = scripted.url.removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall((head + body).encode())
        await until(triton, active=3)
    await until(triton, active=0)
