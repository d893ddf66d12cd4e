"""Laws of the proxy's settings."""

from __future__ import annotations

import pytest

from engine_lib.errors import ConfigurationError
from proxy.settings import Settings


def test_an_empty_environment_means_the_defaults() -> None:
    assert Settings.from_environment({}) == Settings()
    assert Settings.from_environment({"QWEN3_TTS_API_KEY": "", "QWEN3_TTS_TRITON_URL": " "}) == Settings()


def test_every_variable_sets_its_field() -> None:
    assert Settings.from_environment(
        {
            "QWEN3_TTS_TRITON_URL": "one:1, two:2",
            "QWEN3_TTS_API_KEY": "secret",
            "QWEN3_TTS_CORS_ORIGINS": "https://a.example",
            "QWEN3_TTS_MAX_INPUT_CHARS": "10",
            "QWEN3_TTS_MAX_BODY_BYTES": "20",
            "QWEN3_TTS_HEARTBEAT_INTERVAL_S": "0.1",
            "QWEN3_TTS_HEARTBEAT_TIMEOUT_S": "0.2",
            "QWEN3_TTS_FIRST_CHUNK_TIMEOUT_S": "3",
            "QWEN3_TTS_CHUNK_TIMEOUT_S": "4",
        }
    ) == Settings(
        triton_urls=("one:1", "two:2"),
        api_key="secret",
        cors_origins=("https://a.example",),
        max_input_chars=10,
        max_body_bytes=20,
        heartbeat_interval_s=0.1,
        heartbeat_timeout_s=0.2,
        first_chunk_timeout_s=3,
        chunk_timeout_s=4,
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MAX_INPUT_CHARS", "many"),
        ("MAX_INPUT_CHARS", "0"),
        ("MAX_BODY_BYTES", "1.5"),
        ("CHUNK_TIMEOUT_S", "soon"),
        ("HEARTBEAT_TIMEOUT_S", "nan"),
        ("HEARTBEAT_INTERVAL_S", "-1"),
        ("API_KEY", "schlüssel"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?i){variable}"):
        Settings.from_environment({f"QWEN3_TTS_{variable}": value})
