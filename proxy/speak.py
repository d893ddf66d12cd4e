"""A client of our own HTTP API: `say` and `voices`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
import wave
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import httpx

from engine_lib.errors import ConfigurationError, ServiceError
from engine_lib.wire import SAMPLE_RATE

FORMATS = ("wav", "mp3", "opus", "aac", "flac", "pcm")
DEFAULT_OUTPUT = Path("speech.wav")
PLAYERS = (  # take 16-bit mono PCM on standard input
    ("ffplay", "-loglevel", "error", "-nodisp", "-autoexit", "-f", "s16le", "-ar", str(SAMPLE_RATE), "-i", "-"),
    ("pw-cat", "--playback", "--format", "s16", "--rate", str(SAMPLE_RATE), "--channels", "1", "-"),
    ("paplay", "--raw", "--format=s16le", f"--rate={SAMPLE_RATE}", "--channels=1"),
    ("aplay", "--quiet", "-f", "S16_LE", "-r", str(SAMPLE_RATE), "-c", "1"),
)
NOT_PLAYED = "audio open failed"  # what ffplay says without a sound card, and ends with 0
BYTES_PER_SECOND = 2 * SAMPLE_RATE


class ClientError(ServiceError):
    """The server can't be reached or refused, or its sound can't be delivered."""


@dataclass(frozen=True)
class Server:
    """Where a server is, and the key it wants."""

    url: str
    api_key: str | None

    @contextlib.contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """An HTTP client. Raises ClientError, in words for a person, for what goes wrong on the way."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            # Between two pieces of sound the server may wait for its turn; connecting is quick or fails.
            with httpx.Client(base_url=self.url, headers=headers, timeout=httpx.Timeout(120, connect=10)) as client:
                yield client
        except httpx.RemoteProtocolError:
            raise ClientError(f"{self.url} broke off in the middle of its answer.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ClientError(f"No answer from {self.url}: {error or type(error).__name__}.") from None


@dataclass(frozen=True)
class Spoken:
    """What came of it. Seconds; `audio_s` is None for a format whose length the bytes don't tell."""

    output: Path | None
    size: int  # bytes received
    first_audio_s: float
    total_s: float
    audio_s: float | None

    def summary(self) -> str:
        """One line for a person."""
        where = f"{self.output}: " if self.output else ""
        length = f"{self.audio_s:.2f} s of speech" if self.audio_s is not None else f"{self.size} bytes"
        speed = f", {self.audio_s / self.total_s:.1f} times as fast as it plays" if self.audio_s is not None else ""
        return (
            f"{where}{length}, first sound after {self.first_audio_s * 1000:.0f} ms, all in {self.total_s:.2f} s{speed}"
        )


class Sink(Protocol):
    """Where sound goes."""

    def write(self, data: bytes, /) -> object: ...


def say(
    server: Server, text: str, wishes: Mapping[str, str | int | None], *, output: Path | None, play: bool
) -> Spoken:
    """Speak `text` into `output`, or play it, or both. Raises ClientError, ConfigurationError."""
    form = form_of(output, play=play)
    # A WAV file gets its header here, where the length is known at the end.
    requested = "pcm" if form == "wav" else form
    body = {"input": text, "response_format": requested, **{k: v for k, v in wishes.items() if v is not None}}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(server.client())
        started = time.monotonic()
        response = stack.enter_context(client.stream("POST", "/v1/audio/speech", json=body))
        _check(response)
        sinks = open_sinks(stack, output, form, play=play)
        size, first = 0, 0.0
        for data in response.iter_raw():
            first = first or time.monotonic() - started
            size += len(data)
            deliver(data, sinks)
        total = time.monotonic() - started
    audio = size / BYTES_PER_SECOND if requested == "pcm" else None
    return Spoken(output=output, size=size, first_audio_s=first, total_s=total, audio_s=audio)


def form_of(output: Path | None, *, play: bool) -> str:
    """The format that a file's suffix asks for; what is only played is pcm. Raises ConfigurationError."""
    form = output.suffix.removeprefix(".").lower() if output else "pcm"
    if form not in FORMATS:
        raise ConfigurationError(f"Can't tell a format from {output}: its suffix must be one of {', '.join(FORMATS)}.")
    if play and form not in ("wav", "pcm"):
        raise ConfigurationError("--play goes with a .wav or .pcm file only.")
    return form


def open_sinks(stack: contextlib.ExitStack, output: Path | None, form: str, *, play: bool) -> list[Sink]:
    """Where the sound goes; `stack` closes them. Raises ConfigurationError."""
    sinks: list[Sink] = []
    if output:
        sinks.append(_file(stack, output, form))
    if play:
        sinks.append(_player(stack))
    return sinks


def deliver(data: bytes, sinks: Sequence[Sink]) -> None:
    """Write sound to each. Raises ClientError."""
    try:
        for sink in sinks:
            sink.write(data)
    except OSError as error:
        raise ClientError(f"Can't write the sound: {error.strerror}.") from None


def voices(server: Server) -> list[dict[str, str]]:
    """The server's voices: id, name and language of each."""
    with server.client() as client:
        response = client.get("/v1/audio/voices")
        _check(response)
        listed: list[dict[str, str]] = response.json()["voices"]
        return listed


def _check(response: httpx.Response) -> None:
    """Raise ClientError with the server's own words unless it answered well."""
    if response.is_success:
        return
    response.read()
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):  # not a server of ours
        message = response.reason_phrase
    raise ClientError(f"The server refused ({response.status_code}): {message}")


def _file(stack: contextlib.ExitStack, path: Path, form: str) -> Sink:
    try:
        file: IO[bytes] = stack.enter_context(path.open("wb"))
    except OSError as error:
        raise ConfigurationError(f"Can't write {path}: {error.strerror}.") from None
    if form != "wav":
        return file
    writer = stack.enter_context(wave.open(file, "wb"))  # noqa: SIM115 (the stack closes it)
    writer.setnchannels(1)
    writer.setsampwidth(2)
    writer.setframerate(SAMPLE_RATE)
    return _WaveSink(writer)


class _WaveSink:
    """Bytes into a WAV file, whole samples at a time: a network piece may end inside one."""

    def __init__(self, writer: wave.Wave_write) -> None:
        self._writer = writer
        self._rest = b""

    def write(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) // 2 * 2
        self._writer.writeframesraw(data[:whole])
        self._rest = data[whole:]


class _Player:
    """A program that plays what is written. Raises ClientError, at the latest at its end, if it couldn't."""

    def __init__(self, name: str, said: IO[bytes], process: subprocess.Popen[bytes]) -> None:
        self._name = name
        self._said = said  # its standard error
        self._process = process
        if process.stdin is None:
            raise AssertionError("stdin was asked to be a pipe")
        self._stdin = process.stdin

    def write(self, data: bytes) -> None:
        try:
            self._stdin.write(data)
        except BrokenPipeError:
            self.finish()
            raise ClientError(f"{self._name} ended before the sound did.") from None

    def finish(self) -> None:
        """Let it play to the end."""
        self._stdin.close()
        code = self._process.wait()
        self._said.seek(0)
        lines = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        reasons = [line for line in lines if NOT_PLAYED in line]
        if code or reasons:
            reason = [*lines, *reasons][-1] if lines else f"it ended with code {code}"
            raise ClientError(f"{self._name} couldn't play the sound: {reason.strip().rstrip('.')}.")


@contextlib.contextmanager
def _playing(name: str, command: Sequence[str]) -> Iterator[_Player]:
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, bufsize=0) as process,
    ):
        player = _Player(name, said, process)
        yield player
        player.finish()


def _player(stack: contextlib.ExitStack) -> Sink:
    for name, *arguments in PLAYERS:
        if program := shutil.which(name):
            return stack.enter_context(_playing(name, [program, *arguments]))
    raise ConfigurationError(f"--play needs one of {', '.join(command[0] for command in PLAYERS)}.")
