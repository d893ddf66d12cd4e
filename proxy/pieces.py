"""Speak a text in pieces, one after another, as one stream of chunks. Knows the engine's streams; knows no HTTP.

    split text -> _run task: piece 0, then piece 1, ... -> queue -> the caller, who sees the chunks of one utterance

A piece begins when the one before has come in completely, and not before the caller has got to that one: so one piece
is made while the one before plays, and a slow reader costs the memory of two pieces, however long the text.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from engine_lib.errors import GenerationFailed, Overloaded
from engine_lib.wire import FinishReason, StreamOptions, Voice
from proxy.pool import Pool
from proxy.stream import Chunk, Usage

log = logging.getLogger(__name__)

AGAIN_S = 0.1  # between two tries for a place in the engine's queue


def seed_of_piece(seed: int, number: int) -> int:
    """The seed of a long text's piece. Piece 0 has the request's own.

    Piece n has the first eight bytes, big-endian, of the SHA-256 of "SEED/n" in decimal digits, shifted right by one.
    """
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:8], "big") >> 1


@contextlib.asynccontextmanager
async def speak_pieces(
    pool: Pool,
    pieces: Sequence[str],
    options: StreamOptions,
    stream_id: str,
    queue_limit_s: float,
    voice: Voice | None = None,
) -> AsyncIterator[AsyncIterator[Chunk]]:
    """The chunks of all `pieces`, as those of one utterance; leaving early ends what runs.

    Usage is the sum. The finish reason is length if that of any piece is. Each piece but the first waits up to
    `queue_limit_s` when the engine's queue is full. Entering and iterating raise what Pool.speech raises.
    """
    if len(pieces) == 1:
        async with pool.speech(pieces[0], options, stream_id, voice) as chunks:
            yield chunks
        return
    speaker = _Speaker(pool, pieces, options, stream_id, queue_limit_s, voice)
    running = asyncio.create_task(speaker.run())
    try:
        yield speaker.chunks()
    finally:
        running.cancel()
        await asyncio.wait({running})


class _Speaker:
    """The pieces of one text."""

    def __init__(
        self,
        pool: Pool,
        pieces: Sequence[str],
        options: StreamOptions,
        stream_id: str,
        queue_limit_s: float,
        voice: Voice | None,
    ) -> None:
        if options.seed is None:
            raise ValueError("the pieces' seeds follow from the request's")
        self._pool = pool
        self._pieces = pieces
        self._options = options
        self._seed = options.seed
        self._stream_id = stream_id
        self._voice = voice
        self._queue_limit_s = queue_limit_s
        self._arrived: asyncio.Queue[tuple[int, Chunk] | Exception] = asyncio.Queue()
        self._room = asyncio.Semaphore(1)  # a piece may begin

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Each chunk as it comes, up to the last of the last piece."""
        spoken, reason = Usage(0, 0), FinishReason.STOP  # of the pieces before
        current = -1
        for index in range(1 << 62):
            arrived = await self._arrived.get()
            if isinstance(arrived, Exception):
                raise arrived
            number, chunk = arrived
            if number != current:
                current = number
                self._room.release()
            usage = Usage(spoken.text_tokens + chunk.usage.text_tokens, spoken.frames + chunk.usage.frames)
            if chunk.last:
                spoken = usage
                reason = FinishReason.LENGTH if chunk.finish_reason is FinishReason.LENGTH else reason
            last = chunk.last and number == len(self._pieces) - 1
            yield replace(chunk, index=index, usage=usage, last=last, finish_reason=reason if last else None)
            if last:
                return

    async def run(self) -> None:
        """Speak all pieces. Raises nothing: what fails goes to the caller."""
        try:
            for number in range(len(self._pieces)):
                await self._room.acquire()
                await self._speak(number)
        except Exception as error:
            self._arrived.put_nowait(error)

    async def _speak(self, number: int) -> None:
        """Speak a piece; in the middle of a response there is nobody who could come back later."""
        patient_until = asyncio.get_running_loop().time() + (self._queue_limit_s if number else 0)
        while True:
            try:
                await self._try(number)
                return
            except Overloaded:
                if asyncio.get_running_loop().time() >= patient_until:
                    raise
                await asyncio.sleep(AGAIN_S)

    async def _try(self, number: int) -> None:
        options = self._options.model_copy(update={"seed": seed_of_piece(self._seed, number)})
        stream_id = f"{self._stream_id}-{number}" if number else self._stream_id
        async with self._pool.speech(self._pieces[number], options, stream_id, self._voice) as chunks:
            async for chunk in chunks:
                if chunk.finish_reason is FinishReason.CANCELLED:
                    raise GenerationFailed("The stream was ended by someone else.")
                self._arrived.put_nowait((number, chunk))
        log.debug("request %s: piece %d of %d is complete", self._stream_id, number + 1, len(self._pieces))
