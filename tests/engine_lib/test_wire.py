"""The contract's checks: every field's bounds, and errors that survive the way through Triton."""

from __future__ import annotations

import json

import pytest

from engine_lib import errors, wire
from engine_lib.errors import InvalidRequest


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("seed", [0, 2**63 - 1]),
        ("temperature", [0, 0.0, 5, 0.7]),
        ("top_k", [0, 1, 2**31 - 1]),
        ("top_p", [1e-9, 1.0, 1]),
        ("repetition_penalty", [0.001, 10]),
        ("subtalker_temperature", [0, 5]),
        ("subtalker_top_k", [0, 2048]),
        ("subtalker_top_p", [0.5]),
        ("max_new_tokens", [2, 2**31 - 1]),
        ("stream_chunk_schedule", [[1], [1, 2, 400]]),
        ("voice", ["ryan", {"id": "ryan"}]),
        ("do_sample", [True, False]),
    ],
)
def test_every_value_within_bounds_is_taken(field: str, values: list) -> None:
    for value in values:
        expected = value["id"] if isinstance(value, dict) else value
        assert getattr(wire.parse_options(json.dumps({field: value})), field) == expected


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("seed", [-1, 2**63, 1.5, "1", True, 1e300]),
        ("temperature", [-0.1, 5.1, 1e300, float("nan"), float("inf"), "1", [1]]),
        ("top_k", [-1, 2**31, 1.0, 1e99]),
        ("top_p", [0, 1.01, -1]),
        ("repetition_penalty", [0, 10.1, -2]),
        ("subtalker_temperature", [6]),
        ("subtalker_top_k", [-5]),
        ("subtalker_top_p", [0.0]),
        ("max_new_tokens", [1, 0, -5, 2**31]),
        ("stream_chunk_schedule", [[], [0], [1, -1], 4, "1,2", [1.5]]),
        ("voice", [3, ["ryan"], {"name": "ryan"}, "a\x00b", "\ud800"]),
        ("instructions", [1, "\udc00"]),
        ("language", [7]),
        ("ignore_eos", ["yes", 1]),
        ("non_streaming_mode", [0]),
    ],
)
def test_every_other_value_is_refused_by_its_field_name(field: str, values: list) -> None:
    for value in values:
        with pytest.raises(InvalidRequest) as caught:
            wire.parse_options(json.dumps({field: value}))
        assert caught.value.param == field
        assert field in caught.value.message


def test_null_counts_as_left_out_and_unknown_fields_are_ignored() -> None:
    nothing = dict.fromkeys(wire.StreamOptions.model_fields)
    assert wire.parse_options(json.dumps(nothing | {"novel": 1})) == wire.StreamOptions()


@pytest.mark.parametrize(("other", "field"), [("speaker", "voice"), ("instruct", "instructions")])
def test_two_fields_have_another_name_too(other: str, field: str) -> None:
    assert getattr(wire.parse_options(json.dumps({other: "ryan"})), field) == "ryan"


@pytest.mark.parametrize("text", ["[1]", "3", "{", "nul", '{"a":' * 100_000])
def test_options_must_be_a_json_object(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire.parse_options(text)
    assert caught.value.param == "OPTIONS"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty_input"),
        (" \n\t ", "empty_input"),
        ("\u200b\u202e\ufeff", "empty_input"),
        ("a\x00b", "invalid_text"),
        ("a\ud800", "invalid_text"),
    ],
)
def test_text_without_anything_to_speak_is_refused(text: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire.check_text(text)
    assert (caught.value.code, caught.value.param) == (code, "input")


@pytest.mark.parametrize("kind", sorted(set(errors.CODES.values()), key=lambda kind: kind.__name__))
@pytest.mark.parametrize("param", [None, "voice"])
@pytest.mark.parametrize("prefix", ["", "in ensemble 'tts', "])
def test_an_error_keeps_kind_code_message_and_field_through_triton(kind, param: str | None, prefix: str) -> None:
    sent = kind("Unknown voice [x]. Try: a, b.\nOr c.", param=param)
    came = errors.from_wire(prefix + sent.to_wire())
    assert (type(came), came.code, came.message, came.param) == (kind, sent.code, sent.message, param)


@pytest.mark.parametrize("text", ["Stub process 'talker' is not healthy.", "", "x [unknown_code]", "Traceback: secret"])
def test_what_triton_says_itself_stays_inside(text: str) -> None:
    error = errors.from_wire(text)
    assert isinstance(error, errors.GenerationFailed)
    assert text not in error.message or not text
