"""A client of our own WebSocket: `say --live` speaks a text while it is being written."""

from __future__ import annotations

import codecs
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from engine_lib.errors import ConfigurationError
from proxy.speak import BYTES_PER_SECOND, ClientError, Server, Spoken, deliver, form_of, open_sinks

PATH = "/v1/audio/speech/ws"
PROTOCOL = Subprotocol("nari.speech.v1")


def say_live(
    server: Server,
    read: Callable[[], bytes],
    wishes: Mapping[str, str | int | None],
    *,
    output: Path | None,
    play: bool,
) -> Spoken:
    """Speak what `read` returns, UTF-8 cut anywhere, until it returns nothing. Raises as `speak.say` does.

    The times in the answer count from the first piece of text.
    """
    form = form_of(output, play=play)
    if form not in ("wav", "pcm"):
        raise ConfigurationError("--live makes a .wav or .pcm file only.")
    with contextlib.ExitStack() as stack:
        socket = stack.enter_context(_connected(server))
        _tell(socket, "request.start", **{key: value for key, value in wishes.items() if value is not None})
        events = _events(socket)
        for event in events:
            if not isinstance(event, bytes) and event["type"] == "request.configured":
                break
        sinks = open_sinks(stack, output, form, play=play)
        writer = _Writer(socket, read)
        size, first = 0, 0.0
        for event in events:
            if isinstance(event, bytes):
                first = first or writer.elapsed_s
                size += len(event)
                deliver(event, sinks)
        total = writer.elapsed_s
    audio = size / BYTES_PER_SECOND
    return Spoken(output=output, size=size, first_audio_s=first, total_s=total, audio_s=audio)


class _Writer:
    """Sends text as it comes, on a thread of its own: reading it may take for ever."""

    def __init__(self, socket: ClientConnection, read: Callable[[], bytes]) -> None:
        self._socket = socket
        self._read = read
        self._began: float | None = None
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def elapsed_s(self) -> float:
        """Since the first text was sent."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def _run(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        sequence = 0
        with contextlib.suppress(ConnectionClosed):  # whoever reads the socket tells why
            while data := self._read():
                if text := decoder.decode(data):
                    self._began = self._began or time.monotonic()
                    _tell(self._socket, "input_text.append", sequence=sequence, text=text)
                    sequence += 1
            _tell(self._socket, "input_text.end", sequence=sequence)


@contextlib.contextmanager
def _connected(server: Server) -> Iterator[ClientConnection]:
    """A socket. Raises ClientError, in words for a person."""
    address = f"ws{server.url.removeprefix('http').rstrip('/')}{PATH}"
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    try:
        with connect(
            address, subprotocols=[PROTOCOL], additional_headers=headers, proxy=None, compression=None
        ) as socket:
            yield socket
    except InvalidStatus as error:
        raise ClientError(f"The server refused ({error.response.status_code}).") from None
    except (OSError, WebSocketException) as error:
        raise ClientError(f"No answer from {server.url}: {error or type(error).__name__}.") from None


def _tell(socket: ClientConnection, kind: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def _events(socket: ClientConnection) -> Iterator[dict[str, Any] | bytes]:
    """What the server says, up to response.done. Raises ClientError for an error, or when it breaks off."""
    for message in socket:
        if isinstance(message, bytes):
            yield message
            continue
        event: dict[str, Any] = json.loads(message)
        if event["type"] == "error":
            raise ClientError(f"The server refused: {event['error']['message']}")
        yield event
        if event["type"] == "response.done":
            return
    raise ClientError("The server broke off in the middle of its answer.")
