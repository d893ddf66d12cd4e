"""Know which Triton servers can speak right now, by asking them all the time.

Triton calls a model ready whose process is dead. So a server counts as ready once one real utterance has come through,
and as long as both models' own loops answer a heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Collection, Iterator

import numpy as np

from engine_lib import wire
from engine_lib.errors import GenerationFailed, NotReady, Overloaded, ServiceError
from proxy.live_stream import LiveStream
from proxy.settings import Settings
from proxy.stream import Chunk, Limits
from proxy.triton_client import ModelDied, TritonClient

log = logging.getLogger(__name__)

TRIAL_TEXT = "Hello."
TRIAL_SAMPLE = np.sin(np.arange(wire.MIN_SAMPLE_S * wire.SAMPLE_RATE, dtype=np.float32) * 0.05)  # a second of a tone
TRIAL_OPTIONS = wire.StreamOptions.model_validate({"max_new_tokens": 8, "ignore_eos": True, "seed": 0})


class Server:
    """One Triton server: whether it can speak, what it serves, how many of our streams it has."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.client = TritonClient(url, limits)
        self.active = 0  # streams of this proxy
        self.picked = 0  # number of the last pick that chose it
        self._others = 0  # streams of other clients, at the last heartbeat
        self.lost = False  # it answered once, and doesn't any more
        self.reason = "Triton hasn't answered yet."  # why it isn't ready, for people
        self._description: wire.Description | None = None

    @property
    def ready(self) -> bool:
        """Whether an utterance sent now has every chance to be spoken."""
        return self._description is not None

    @property
    def description(self) -> wire.Description:
        """What the engine says of itself, current while ready. Raises NotReady."""
        if self._description is None:
            raise NotReady(f"The service isn't ready. {self.reason}")
        return self._description

    @property
    def load(self) -> int:
        """Streams that it has: ours, and those of other proxies and clients as the engine last told."""
        return self.active + self._others

    @property
    def full(self) -> bool:
        """Whether one more would be refused, for all that we know. Raises NotReady."""
        return self.load >= self.description.max_active + self.description.max_waiting

    @contextlib.asynccontextmanager
    async def speech(
        self, text: str, options: wire.StreamOptions, stream_id: str, voice: wire.Voice | None = None
    ) -> AsyncIterator[AsyncIterator[Chunk]]:
        """TritonClient.speech, counted."""
        with self._counted():
            async with self.client.speech(text, options, stream_id, voice) as chunks:
                yield chunks

    @contextlib.asynccontextmanager
    async def live(
        self, options: wire.StreamOptions, stream_id: str, voice: wire.Voice | None = None
    ) -> AsyncIterator[LiveStream]:
        """TritonClient.live, counted."""
        with self._counted():
            async with self.client.live(options, stream_id, voice) as stream:
                yield stream

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    async def watch(self, interval_s: float) -> None:
        """Keep `ready` true to what the server can do, until cancelled."""
        while True:
            try:
                await self._become_ready()
                await self._stay_ready(interval_s)
            except ServiceError as error:
                self._set_reason(error.message)
                if isinstance(error, ModelDied):
                    self.client.fail_running()
            except Exception:  # whatever broke, a server that can't be watched isn't ready
                log.exception("%s: the check failed", self.client.url)
                self._set_reason("The check of the engine failed.")
            await asyncio.sleep(interval_s)

    async def _become_ready(self) -> None:
        """Return once an utterance was spoken. Raises ServiceError for what is in the way."""
        description = await self.client.heartbeat()
        self.lost = False
        self.reason = "The first utterance is on its way."
        await self._try(clones=description.embedding_size > 0)
        log.info("%s is ready: %s on %s", self.client.url, description.model, description.device)
        self._note(description)

    async def _stay_ready(self, interval_s: float) -> None:
        """Raise ServiceError once a heartbeat fails.

        They don't wait for each other: one that a process took with it when it died would never be answered, but the
        next one is refused at once.
        """
        try:
            async with asyncio.TaskGroup() as beats:
                while True:
                    beats.create_task(self._beat())
                    await asyncio.sleep(interval_s)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _beat(self) -> None:
        self._note(await self.client.heartbeat())

    def _note(self, description: wire.Description) -> None:
        self._description = description
        self._others = max(0, description.active + description.waiting - self.active)

    async def _try(self, *, clones: bool) -> None:
        """Speak one real utterance to its end, where voices are cloned in one made of a tone."""
        samples, voice = 0, None
        if clones:
            voice = await self.client.make_voice(TRIAL_SAMPLE, TRIAL_TEXT)
        async with self.speech(TRIAL_TEXT, TRIAL_OPTIONS, f"trial-{uuid.uuid4().hex}", voice) as chunks:
            async for chunk in chunks:
                samples += len(chunk.pcm)
        if samples == 0:
            raise GenerationFailed("The first utterance had no sound.")

    def _set_reason(self, reason: str) -> None:
        if self.ready:
            log.error("%s isn't ready any more: %s", self.client.url, reason)
            self.lost = True
        self.reason = reason
        self._description = None


class Pool:
    """The servers behind this proxy."""

    def __init__(self, settings: Settings) -> None:
        limits = Limits(
            first_chunk_s=settings.first_chunk_timeout_s,
            chunk_s=settings.chunk_timeout_s,
            heartbeat_s=settings.heartbeat_timeout_s,
        )
        self._interval_s = settings.heartbeat_interval_s
        self.servers = [Server(url, limits) for url in settings.triton_urls]
        self._picks = 0

    @property
    def description(self) -> wire.Description:
        """What is served, the same by every ready server. Raises NotReady with the reason."""
        for server in self.servers:
            if server.ready:
                return server.description
        raise NotReady(f"The service isn't ready. {self.servers[0].reason}")

    def pick(self, but: Collection[Server] = ()) -> Server:
        """The ready server with the fewest streams, of many the one that waited longest. Raises NotReady."""
        ready = [server for server in self.servers if server.ready and server not in but]
        if not ready:
            raise NotReady(f"The service isn't ready. {self.servers[0].reason}")
        chosen = min(ready, key=lambda server: (not server.client.connected, server.full, server.load, server.picked))
        self._picks += 1
        chosen.picked = self._picks
        return chosen

    @contextlib.asynccontextmanager
    async def speech(
        self, text: str, options: wire.StreamOptions, stream_id: str, voice: wire.Voice | None = None
    ) -> AsyncIterator[AsyncIterator[Chunk]]:
        """Server.speech on the server that `pick` would choose, or on the next one if that doesn't take it.

        Entering waits for the first chunk. Raises Overloaded only if no ready server took it and one was full, and
        what Server.speech raises.
        """
        refusal: ServiceError | None = None
        tried: set[Server] = set()
        while True:
            try:
                server = self.pick(but=tried)
            except NotReady as error:
                raise refusal or error from None
            tried.add(server)
            async with server.speech(text, options, stream_id, voice) as chunks:
                try:
                    first = await anext(chunks)
                except Overloaded as error:
                    refusal = error
                    continue
                except NotReady as error:
                    refusal = refusal or error
                    continue
                yield _again(first, chunks)
                return

    @property
    def clones(self) -> bool:
        """Whether a ready server speaks in cloned voices."""
        return any(server.ready and server.description.embedding_size for server in self.servers)

    @property
    def alive(self) -> bool:
        """False once every server answered and stopped answering."""
        return not all(server.lost for server in self.servers)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watch the servers meanwhile, and close the connections at the end."""
        watches = [asyncio.create_task(server.watch(self._interval_s)) for server in self.servers]
        try:
            yield
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.wait(watches)
            for server in self.servers:
                await server.client.close()


async def _again(first: Chunk, rest: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    yield first
    async for chunk in rest:
        yield chunk
