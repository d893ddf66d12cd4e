"""Laws of what HTTP refuses: the status, and one envelope for all of it. A real server with scripted models."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.serving import LIMIT_S, Serving

Speak = Callable[..., httpx.Response]


def refused(response: httpx.Response, status: int, *, param: str | None = None, code: str | None = None) -> str:
    """The message of an error in the envelope; fails when it isn't this one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert code is None or error["code"] == code
    assert not any(word in response.text for word in ("Traceback", "File ", "ensemble", "pydantic", "triton_"))
    message: str = error["message"]
    return message


@pytest.mark.parametrize("text", ["", "   ", "\n\n\n", "\u200b", None, 5, ["a"], {"a": 1}, True])
def test_case_1_blank_or_odd_input_is_400(speak: Speak, text: object) -> None:
    refused(speak(input=text), 400, param="input")


@pytest.mark.parametrize("text", ["\\ud800", "a\\u0000b"])
def test_case_47_what_is_no_text_is_400(http: httpx.Client, text: str) -> None:
    response = http.post(
        "/v1/audio/speech", content=f'{{"input": "{text}"}}', headers={"content-type": "application/json"}
    )
    refused(response, 400, param="input", code="invalid_text")


@pytest.mark.parametrize("voice", ["", "nobody", 5, ["ryan"], {"id": "nobody"}])
def test_case_1_an_unknown_voice_is_400_before_any_sound(speak: Speak, voice: object) -> None:
    refused(speak(voice=voice), 400, param="voice")


@pytest.mark.parametrize("voice", ["nobody", 5, "x" * 300, {"name": "ryan"}])
def test_a_voice_that_was_called_speaker_is_refused_under_that_name(
    speak: Speak, http: httpx.Client, voice: object
) -> None:
    refused(speak(speaker=voice), 400, param="speaker")
    refused(speak(speaker=voice, voice=None), 400, param="speaker")
    batch = http.post("/v1/audio/speech/batch", json={"items": [{"input": "hello", "speaker": voice}]})
    assert batch.json()["error"]["param"] == "speaker"


def test_the_engine_names_the_known_voices(speak: Speak) -> None:
    assert "ryan, serena" in refused(speak(voice="nobody"), 400, param="voice")


@pytest.mark.parametrize("speed", [0, -1, 0.24, 4.01, "fast", 1e308, True, [1]])
def test_case_3_speed_out_of_range_is_400(speak: Speak, speed: object) -> None:
    refused(speak(speed=speed), 400, param="speed")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["speed", "temperature", "top_p", "seed", "max_new_tokens"])
def test_case_3_what_is_no_number_is_400(http: httpx.Client, field: str, number: str) -> None:
    body = f'{{"input": "hello", "{field}": {number}}}'
    refused(http.post("/v1/audio/speech", content=body, headers={"content-type": "application/json"}), 400, param=field)


@pytest.mark.parametrize("speed", [0.25, 4, 4.0, None])
def test_case_3_speed_in_range_is_spoken(speak: Speak, speed: object) -> None:
    assert speak(speed=speed).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 5.1),
        ("top_k", -1),
        ("top_k", 2**31),
        ("top_p", 0),
        ("top_p", 1.01),
        ("repetition_penalty", 0),
        ("repetition_penalty", 10.5),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 1.5),
        ("seed", "7"),
        ("max_new_tokens", 0),
        ("sample_rate", 11025),
        ("sample_rate", "24000"),
        ("stream", "yes"),
        ("stream_format", "websocket"),
        ("stream_chunk_schedule", []),
        ("stream_chunk_schedule", [0]),
        ("instructions", 5),
        ("language", 5),
    ],
)
def test_a_field_out_of_range_is_400_and_named(speak: Speak, field: str, value: object) -> None:
    refused(speak(**{field: value}), 400, param=field)


@pytest.mark.parametrize("form", ["ogg", "", "mp4", 5, ["wav"]])
def test_case_4_an_unknown_format_is_400_naming_the_known(speak: Speak, form: object) -> None:
    message = refused(speak(response_format=form), 400, param="response_format")
    assert all(known in message for known in ("mp3", "opus", "aac", "flac", "wav", "pcm"))


@pytest.mark.parametrize(
    "body", [b"{", b"", b"[]", b'"text"', b"null", b"\xff", b"[" * 100_000, b'{"seed": ' + b"9" * 5000]
)
def test_case_6_a_body_that_is_no_json_object_is_400(http: httpx.Client, body: bytes) -> None:
    response = http.post("/v1/audio/speech", content=body, headers={"content-type": "application/json"})
    refused(response, 400, code="invalid_json")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "number of too many digits"),
        (b'{"seed": 9', "isn't valid JSON"),
    ],
)
def test_a_body_is_called_what_it_is(http: httpx.Client, body: bytes, said: str) -> None:
    response = http.post("/v1/audio/speech", content=body, headers={"content-type": "application/json"})
    assert said in refused(response, 400, code="invalid_json")


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/voices"])
def test_a_packed_body_is_415_naming_the_header(http: httpx.Client, path: str) -> None:
    kind = "multipart/form-data; boundary=x" if path.endswith("voices") else "application/json"
    headers = {"content-type": kind, "content-encoding": "gzip"}
    answer = http.post(path, content=gzip.compress(b'{"input": "hello"}'), headers=headers)
    assert "'Content-Encoding: gzip'" in refused(answer, 415, code="unsupported_media_type")
    plain = {"content-type": "application/json", "content-encoding": "identity"}
    assert http.post("/v1/audio/speech", content=b'{"input": "hello"}', headers=plain).status_code == 200


def test_a_speaker_of_the_model_is_described_and_cannot_be_deleted(http: httpx.Client) -> None:
    assert http.get("/v1/audio/voices/Ryan").json() == {"id": "ryan", "name": "Ryan", "language": "english"}
    assert "model's own" in refused(
        http.delete("/v1/audio/voices/ryan"), 400, param="voice_id", code="voice_not_deletable"
    )
    for answer in (http.get("/v1/audio/voices/nobody"), http.delete("/v1/audio/voices/nobody")):
        refused(answer, 404, param="voice_id", code="voice_not_found")


@pytest.mark.parametrize("path", ["/", "/page/app.js"])
def test_a_page_has_a_head(http: httpx.Client, path: str) -> None:
    head, whole = http.head(path), http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_case_6_another_content_type_is_415(http: httpx.Client, kind: str) -> None:
    refused(http.post("/v1/audio/speech", content=b'{"input": "hello"}', headers={"content-type": kind}), 415)


def test_case_6_a_charset_beside_the_content_type_is_fine(http: httpx.Client) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert http.post("/v1/audio/speech", content=b'{"input": "hello"}', headers=headers).status_code == 200


@pytest.mark.parametrize("declared", [True, False])
def test_case_6_a_body_over_the_limit_is_413(scripted: Serving, declared: bool) -> None:
    """Over a plain socket, since the answer may come before all of the body is out."""
    host, port = scripted.url.removeprefix("http://").split(":")
    framing = "Content-Length: 20000000" if declared else "Transfer-Encoding: chunked"
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    block = b" " * 65536
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        connection.sendall(head.encode())
        for _ in range(20):
            connection.sendall(block if declared else b"10000\r\n" + block + b"\r\n")
        answer = b""
        while b"body_too_large" not in answer and (more := connection.recv(65536)):  # head and body may come apart
            answer += more
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"body_too_large"' in answer


def test_text_over_the_limit_is_400_and_text_at_the_limit_is_spoken(speak: Speak) -> None:
    refused(speak("x" * 4097), 400, param="input", code="input_too_large")
    assert speak("x" * 4096).status_code == 200


@pytest.mark.parametrize("name", ["gpt-4", "", "scripted2", "Scripted"])
def test_case_6_an_unknown_model_is_404(speak: Speak, http: httpx.Client, name: str) -> None:
    refused(speak(model=name), 404, param="model", code="model_not_found")
    if name:
        refused(http.get(f"/v1/models/{name}"), 404, param="model", code="model_not_found")


@pytest.mark.parametrize("name", ["makers/scripted", "scripted", "tts-1", "tts-1-hd", "gpt-4o-mini-tts", None])
def test_case_6_the_served_model_has_openai_names_too(speak: Speak, name: str | None) -> None:
    assert speak(model=name).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/audio/speech", 405),
        ("PUT", "/ready", 405),
    ],
)
def test_errors_of_routing_have_the_envelope(http: httpx.Client, method: str, path: str, status: int) -> None:
    response = http.request(method, path)
    refused(response, status)
    assert status != 405 or response.headers["allow"]


@pytest.mark.parametrize("way", [{}, {"stream": False}, {"stream_format": "sse"}, {"response_format": "mp3"}])
def test_what_fails_before_the_first_sound_has_a_status_of_its_own(speak: Speak, way: dict[str, Any]) -> None:
    busy = speak("refuse=1", **way)
    refused(busy, 429, code="overloaded")
    assert int(busy.headers["retry-after"]) >= 1
    assert busy.json()["error"]["type"] == "rate_limit_error"
    refused(speak("refuse=2", **way), 503, code="not_ready")
    failed = speak("fail=0", **way)
    refused(failed, 500, code="generation_failed")
    assert failed.json()["error"]["type"] == "server_error"
    refused(speak("mute=3 fail=3", **way), 500, code="generation_failed")


@pytest.mark.parametrize("way", [{}, {"stream": False}, {"stream_format": "sse"}, {"response_format": "wav"}])
def test_an_utterance_without_sound_is_no_empty_200(speak: Speak, way: dict[str, Any]) -> None:
    refused(speak("frames=2 mute=2", **way), 500, code="generation_failed")


def test_null_counts_as_left_out_and_unknown_fields_are_ignored(http: httpx.Client, speak: Speak) -> None:
    (schema,) = [
        http.get("/openapi.json").json()["paths"]["/v1/audio/speech"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    ]  # fmt: skip
    nulls = dict.fromkeys(set(schema["properties"]) - {"input"})
    assert len(nulls) > 20
    assert speak(**nulls, speaker=None, instruct=None, extra={"a": [1]}).status_code == 200
