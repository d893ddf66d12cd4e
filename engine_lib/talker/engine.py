"""The talker's loop: one thread that owns the model, takes actions in, and hands chunks out.

Everything a client can do arrives as an action in the inbox; everything it gets leaves through its stream's `deliver`,
which must not block.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from engine_lib.errors import ConfigurationError, InvalidRequest, ServiceError
from engine_lib.profile import Profile
from engine_lib.recent import RecentNames
from engine_lib.talker.config import SamplingDefaults, TalkerConfig
from engine_lib.talker.model import Talker
from engine_lib.talker.runner import Runner
from engine_lib.talker.scheduler import Batch, Scheduler
from engine_lib.talker.stream import Deliver, Sampling, Stream
from engine_lib.text.prompt import Prompt, PromptBuilder, Voices
from engine_lib.text.tokenizer import TextTokenizer
from engine_lib.wire import SAMPLE_RATE, Description, FinishReason, StreamOptions, check_text

log = logging.getLogger(__name__)

T = TypeVar("T")

ROW_TILE = {"cpu": 8, "cuda": 32}  # rows of one product, see runner.py; a GPU hardly notices idle ones
REMEMBERED_CANCELS = 1024  # a cancel may overtake its start on the way through Triton


class Engine:
    """Speaks texts with one checkpoint. Public methods may be called from any thread."""

    def __init__(
        self,
        talker: Talker,
        tokenizer: TextTokenizer,
        defaults: SamplingDefaults,
        profile: Profile,
        *,
        model: str,
        speaks: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = talker.config
        self._profile = profile
        self._defaults = defaults
        self._voices = Voices(talker.config, profile.voice_aliases)
        self._prompts = PromptBuilder(talker.config, tokenizer, self._voices)
        tile = ROW_TILE[talker.codec_head.weight.device.type]
        self._runner = Runner(talker, profile.max_active, profile.slot_positions, tile)
        self._scheduler = Scheduler(profile)
        self._model, self._speaks = model, speaks
        self._clock = clock
        self._cancelled_early = RecentNames(REMEMBERED_CANCELS)
        self._inbox: list[Callable[[], None]] = []
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="talker", daemon=True)
        self._thread.start()

    @classmethod
    def from_checkpoint(
        cls, directory: Path, profile: Profile, device: torch.device, *, model: str, speaks: bool = True
    ) -> Engine:
        """Load a checkpoint in the official layout. Raises ConfigurationError naming what doesn't fit."""
        config = TalkerConfig.from_directory(directory)
        if config.kind == "base":
            raise ConfigurationError(
                f"{model} is a Base checkpoint, which speaks only in cloned voices: that isn't supported yet. "
                "Use a CustomVoice or VoiceDesign checkpoint.",
                param="model",
            )
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}.get(
            profile.talker_dtype, torch.bfloat16 if device.type == "cuda" else torch.float32
        )
        talker = Talker.from_directory(directory, config, dtype, device)
        tokenizer = TextTokenizer(directory, im_start=config.ids.im_start, im_end=config.ids.im_end)
        engine = cls(talker, tokenizer, SamplingDefaults.from_directory(directory), profile, model=model, speaks=speaks)
        log.info("talker on %s in %s, cache %.0f MiB", device, dtype, engine._runner.cache.bytes() / 2**20)
        return engine

    @property
    def active(self) -> int:
        """Streams that hold a slot."""
        return self._scheduler.active

    @property
    def waiting(self) -> int:
        """Streams that wait for one."""
        return self._scheduler.waiting

    def start(self, text: str, options: StreamOptions, stream_id: str, deliver: Deliver) -> None:
        """Speak `text`. Chunks, or one error, arrive through `deliver` on the engine's thread.

        Raises InvalidRequest naming the field when the request can't be spoken.
        """
        stream = self._stream(check_text(text), options, stream_id or uuid.uuid4().hex, deliver)
        self._post(lambda: self._start(stream))

    def cancel(self, stream_id: str, done: Callable[[], None]) -> None:
        """End a stream, or the one of that id that is still on its way here. Then calls `done`."""

        def action() -> None:
            if stream := self._scheduler.find(stream_id):
                self._finish(stream, FinishReason.CANCELLED)
            else:
                self._cancelled_early.add(stream_id)
            done()

        self._post(action)

    def describe(self, done: Callable[[Description], None]) -> None:
        """Call `done` with what the engine is and does. The loop answers, so an answer shows that it lives."""
        self._post(lambda: done(self._description()))

    def close(self) -> None:
        """Stop the loop; streams that still speak end as failed."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _post(self, action: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(action)
            self._wake.notify()

    def _run(self) -> None:
        while self._take_actions():
            self._step()
        for stream in self._scheduler.streams():
            self._finish(stream, FinishReason.FAILED)

    def _take_actions(self) -> bool:
        """Wait until there is something to do, do what the inbox asks. False when closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._closed or self._scheduler.active)
            actions, self._inbox = self._inbox, []
        for action in actions:
            action()
        return not self._closed

    def _step(self) -> None:
        batch = self._scheduler.next(self._clock())
        if batch is None:
            return
        try:
            sampled = self._runner.run(batch)
        # Whatever broke, it broke these streams: the others and the service go on.
        except Exception:
            self._fail(batch)
            return
        now = self._clock()
        for stream, codes in sampled:
            stream.accept(codes)
            self._deliver(stream, now)

    def _start(self, stream: Stream) -> None:
        if self._cancelled_early.discard(stream.id):
            stream.end(FinishReason.CANCELLED)
            self._deliver(stream, self._clock())
        elif self._scheduler.find(stream.id):
            stream.deliver(InvalidRequest("A stream of this STREAM_ID is speaking already.", param="STREAM_ID"))
        else:
            try:
                self._scheduler.add(stream)
            except ServiceError as error:
                stream.deliver(error)

    def _finish(self, stream: Stream, reason: FinishReason) -> None:
        stream.end(reason)
        self._scheduler.remove(stream)
        self._deliver(stream, self._clock())

    def _deliver(self, stream: Stream, now: float) -> None:
        if chunk := stream.take_chunk(now):
            if chunk.last and stream.slot is not None:
                self._scheduler.remove(stream)
            if chunk.finish_reason is FinishReason.LENGTH:
                log.warning("stream %s reached its limit of %d frames", stream.id, stream.limit)
            stream.deliver(chunk)

    def _fail(self, batch: Batch) -> None:
        streams = [*batch.prefill, *batch.decode]
        log.exception("a step failed; streams %s end", ", ".join(stream.id for stream in streams))
        for stream in streams:
            self._finish(stream, FinishReason.FAILED)

    def _stream(self, text: str, options: StreamOptions, stream_id: str, deliver: Deliver) -> Stream:
        prompt = self._prompts.build(
            text,
            voice=options.voice,
            language=options.language,
            instructions=options.instructions,
            streaming=not options.non_streaming_mode,
        )
        return Stream(
            stream_id,
            prompt,
            sampling=self._sampling(options),
            seed=secrets.randbits(63) if options.seed is None else options.seed,
            limit=self._limit(prompt, options),
            chunk_schedule=options.stream_chunk_schedule or self._profile.chunk_schedule,
            eos_id=self._config.ids.codec_eos,
            pad_id=self._config.ids.tts_pad,
            ignore_eos=options.ignore_eos,
            mask_eos=bool(options.mask_eos_until_text_end),
            deliver=deliver,
        )

    def _limit(self, prompt: Prompt, options: StreamOptions) -> int:
        """Frames that may be sampled: as asked or by the text's length, and never more than the slot holds."""
        room = self._profile.slot_positions - len(prompt) + 1
        if room < 2:
            raise InvalidRequest(
                f"'input' and 'instructions' take {len(prompt)} positions, "
                f"but a stream has {self._profile.slot_positions} with its speech.",
                param="input",
                code="input_too_large",
            )
        budget = self._profile.budget_base_frames + self._profile.budget_frames_per_token * prompt.text_tokens
        return min(options.max_new_tokens or budget, room)

    def _sampling(self, options: StreamOptions) -> Sampling:
        """The request's rules over the checkpoint's; `do_sample` false is temperature 0."""
        own = self._defaults
        sample = _first(options.do_sample, own.do_sample)
        sub_sample = _first(options.subtalker_dosample, own.subtalker_dosample)
        return Sampling(
            temperature=_first(options.temperature, own.temperature) if sample else 0.0,
            top_k=_first(options.top_k, own.top_k),
            top_p=_first(options.top_p, own.top_p),
            repetition_penalty=_first(options.repetition_penalty, own.repetition_penalty),
            sub_temperature=_first(options.subtalker_temperature, own.subtalker_temperature) if sub_sample else 0.0,
            sub_top_k=_first(options.subtalker_top_k, own.subtalker_top_k),
            sub_top_p=_first(options.subtalker_top_p, own.subtalker_top_p),
        )

    def _description(self) -> Description:
        return Description(
            model=self._model,
            model_type=self._config.kind,
            model_size=self._config.size,
            speakers=self._voices.described(),
            voice_aliases=self._voices.aliases,
            languages=self._voices.languages,
            sampling_defaults=dataclasses.asdict(self._defaults),
            sample_rate=SAMPLE_RATE,
            slot_positions=self._profile.slot_positions,
            max_active=self._profile.max_active,
            max_waiting=self._profile.max_waiting,
            active=self._scheduler.active,
            waiting=self._scheduler.waiting,
            device=str(self._runner.device),
            path="plain",
            speaks=self._speaks,
        )


def _first(value: T | None, default: T) -> T:
    return default if value is None else value
