"""What a deployment may choose about the proxy: a frozen object, read from the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine_lib.errors import ConfigurationError
from engine_lib.profile import boolean
from engine_lib.wire import MAX_CHARACTERS
from proxy.logs import FORMATTERS


def default_voice_dir() -> Path:
    """The user's folder for data that programs keep."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "qwen3-tts-triton" / "voices"


@dataclass(frozen=True)
class Settings:
    """The proxy's settings. Times in seconds. The address to listen on is the launcher's, not the app's."""

    triton_urls: tuple[str, ...] = ("127.0.0.1:8001",)  # HOST:PORT of each server's gRPC
    api_key: str | None = None  # None: open to everyone
    api_keys: tuple[str, ...] = ()  # more of them, each with voices of its own
    private_voices: bool = True  # with several keys: a voice is for the key that added it alone
    cors_origins: tuple[str, ...] = ()  # browser origins beside our own host; * is all
    max_input_chars: int = 4096
    max_body_bytes: int = 1 << 20
    heartbeat_interval_s: float = 0.5
    heartbeat_timeout_s: float = 5.0  # a busy engine answers between two steps; a dead one is refused at once
    first_chunk_timeout_s: float = 120.0  # waiting in the engine's queue counts
    chunk_timeout_s: float = 30.0  # silence of the engine in the middle of a stream
    input_timeout_s: float = 30.0  # silence of a client whose live text hasn't ended
    send_timeout_s: float = 30.0  # a WebSocket client that doesn't read
    body_timeout_s: float = 20.0  # for a request's body to arrive
    max_message_bytes: int = 64 << 10  # of one WebSocket message
    max_live_events: int = 16_384  # pieces of one live text
    max_live_chars: int = MAX_CHARACTERS  # of them together
    split_texts: bool = True  # speak long texts of HTTP in pieces
    split_chars: int = 600  # a text above it is long
    split_wide_chars: int = 200  # the same for Chinese, Japanese and Korean
    voice_dir: Path = field(default_factory=default_voice_dir)  # where added voices are kept
    max_voices: int = 500  # added voices, of each key where they are private
    max_sample_bytes: int = 10 << 20  # of a voice's sample
    ref_audio_hosts: tuple[str, ...] = ()  # from which samples are fetched; none: a request must bring its own
    log_format: str = "text"  # of logs.FORMATTERS
    log_text: bool = False  # whether what is spoken may stand in the log

    def __post_init__(self) -> None:
        _require(len(self.triton_urls) > 0, "triton_urls", "must name at least one server")
        _require(all(key.isascii() for key in self.keys), "api_key", "must be ASCII: a header carries it")
        for name, value in (
            ("max_input_chars", self.max_input_chars),
            ("max_body_bytes", self.max_body_bytes),
            ("heartbeat_interval_s", self.heartbeat_interval_s),
            ("heartbeat_timeout_s", self.heartbeat_timeout_s),
            ("first_chunk_timeout_s", self.first_chunk_timeout_s),
            ("chunk_timeout_s", self.chunk_timeout_s),
            ("input_timeout_s", self.input_timeout_s),
            ("send_timeout_s", self.send_timeout_s),
            ("body_timeout_s", self.body_timeout_s),
            ("max_message_bytes", self.max_message_bytes),
            ("max_live_events", self.max_live_events),
            ("max_live_chars", self.max_live_chars),
            ("split_chars", self.split_chars),
            ("split_wide_chars", self.split_wide_chars),
            ("max_voices", self.max_voices),
            ("max_sample_bytes", self.max_sample_bytes),
        ):
            _require(0 < value < math.inf, name, "must be a number above 0")
        _require(self.log_format in FORMATTERS, "log_format", f"must be one of {', '.join(FORMATTERS)}")

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that lets a client in; none: everyone may come."""
        return (*([self.api_key] if self.api_key is not None else []), *self.api_keys)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read QWEN3_TTS_*; an empty variable counts as absent. Raises ConfigurationError naming the variable."""
        env = _Environment(os.environ if environment is None else environment)
        return cls(
            triton_urls=env.names("TRITON_URL") or cls.triton_urls,
            api_key=env.text("API_KEY"),
            api_keys=env.names("API_KEYS"),
            private_voices=env.flag("PRIVATE_VOICES", cls.private_voices),
            cors_origins=env.names("CORS_ORIGINS"),
            max_input_chars=env.whole("MAX_INPUT_CHARS", cls.max_input_chars),
            max_body_bytes=env.whole("MAX_BODY_BYTES", cls.max_body_bytes),
            heartbeat_interval_s=env.seconds("HEARTBEAT_INTERVAL_S", cls.heartbeat_interval_s),
            heartbeat_timeout_s=env.seconds("HEARTBEAT_TIMEOUT_S", cls.heartbeat_timeout_s),
            first_chunk_timeout_s=env.seconds("FIRST_CHUNK_TIMEOUT_S", cls.first_chunk_timeout_s),
            chunk_timeout_s=env.seconds("CHUNK_TIMEOUT_S", cls.chunk_timeout_s),
            input_timeout_s=env.seconds("INPUT_TIMEOUT_S", cls.input_timeout_s),
            send_timeout_s=env.seconds("SEND_TIMEOUT_S", cls.send_timeout_s),
            body_timeout_s=env.seconds("BODY_TIMEOUT_S", cls.body_timeout_s),
            max_message_bytes=env.whole("MAX_MESSAGE_BYTES", cls.max_message_bytes),
            max_live_events=env.whole("MAX_LIVE_EVENTS", cls.max_live_events),
            max_live_chars=env.whole("MAX_LIVE_CHARS", cls.max_live_chars),
            split_texts=env.flag("SPLIT_TEXTS", cls.split_texts),
            split_chars=env.whole("SPLIT_CHARS", cls.split_chars),
            split_wide_chars=env.whole("SPLIT_WIDE_CHARS", cls.split_wide_chars),
            voice_dir=Path(env.text("VOICE_DIR") or default_voice_dir()).expanduser(),
            max_voices=env.whole("MAX_VOICES", cls.max_voices),
            max_sample_bytes=env.whole("MAX_SAMPLE_BYTES", cls.max_sample_bytes),
            ref_audio_hosts=env.names("REF_AUDIO_HOSTS"),
            log_format=env.text("LOG_FORMAT") or cls.log_format,
            log_text=env.flag("LOG_TEXT", cls.log_text),
        )


class _Environment:
    """Values of QWEN3_TTS_* variables by type."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def text(self, name: str) -> str | None:
        return self._variables.get(f"QWEN3_TTS_{name}", "").strip() or None

    def names(self, name: str) -> tuple[str, ...]:
        parts = (self.text(name) or "").split(",")
        return tuple(part.strip() for part in parts if part.strip())

    def whole(self, name: str, default: int) -> int:
        text = self.text(name)
        try:
            return default if text is None else int(text)
        except ValueError:
            raise _refused(name, "a whole number", text) from None

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        return default if text is None else boolean(text, f"QWEN3_TTS_{name}")

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name)
        try:
            return default if text is None else float(text)
        except ValueError:
            raise _refused(name, "a number of seconds", text) from None


def _refused(name: str, expected: str, text: str | None) -> ConfigurationError:
    variable = f"QWEN3_TTS_{name}"
    return ConfigurationError(f"{variable} must be {expected}, not {text!r}.", param=variable)


def _require(holds: bool, key: str, rule: str) -> None:
    if not holds:
        raise ConfigurationError(f"Proxy setting '{key}' {rule}.", param=key)
