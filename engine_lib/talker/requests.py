"""Turn what clients ask for into streams: prompt, sampling rules, limits. Knows no tensors and no scheduling."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING, TypeVar

from engine_lib.errors import InvalidRequest
from engine_lib.profile import Profile
from engine_lib.talker.config import SamplingDefaults, TalkerConfig
from engine_lib.talker.stream import Deliver, Sampling, Stream
from engine_lib.text.live import LiveText
from engine_lib.text.prompt import Prompt, PromptBuilder, Voices, Voicing
from engine_lib.text.tokenizer import ASSISTANT, TextTokenizer
from engine_lib.voice import Shelf, check_voice
from engine_lib.wire import (
    MAX_CHARACTERS,
    SAMPLE_RATE,
    X_VECTOR,
    Description,
    StreamOptions,
    Voice,
    check_text,
    folded,
    unknown_clone,
)

if TYPE_CHECKING:
    from engine_lib.talker.live import LiveUtterance

T = TypeVar("T")


class Requests:
    """Everything that a checkpoint and a profile say about a request."""

    def __init__(
        self, config: TalkerConfig, tokenizer: TextTokenizer, defaults: SamplingDefaults, profile: Profile
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._profile = profile
        self._voices = Voices(config, profile.voice_aliases)
        self._clones = Shelf(profile.voice_cache)  # Triton's thread's
        self._prompts = PromptBuilder(config, tokenizer, self._voices)

    def stream(
        self, text: str, options: StreamOptions, stream_id: str, deliver: Deliver, voice: Voice | None = None
    ) -> Stream:
        """A stream that speaks `text`, in a cloned `voice` if there is one.

        Raises InvalidRequest naming the field when it can't be spoken.
        """
        if len(text) > MAX_CHARACTERS:
            raise InvalidRequest(f"'input' is over {MAX_CHARACTERS} characters.", param="input", code="input_too_large")
        whole = _first(options.non_streaming_mode, self._config.kind != "base")
        prompt = self._prompts.build(check_text(text), self.voicing(options, voice), streaming=not whole)
        self._check_room(prompt)
        return self._made(stream_id, prompt, options, deliver, self._budget(prompt.text_tokens), live=False)

    def voicing(self, options: StreamOptions, voice: Voice | None = None, *, live: bool = False) -> Voicing:
        """Who speaks and how. Raises InvalidRequest for an unknown voice or language, or too long an instruction."""
        if live and options.non_streaming_mode:
            raise InvalidRequest(
                "'non_streaming_mode' can't be true for live text, which is never there as a whole.",
                param="non_streaming_mode",
            )
        try:
            clone = self._clone(options, voice)
            if clone and _first(options.x_vector_only_mode, live):
                clone = clone.alike
            voicing = self._prompts.voicing(
                voice=options.voice, language=options.language, instructions=options.instructions, clone=clone
            )
        except InvalidRequest as error:
            raise options.in_its_words(error) from None
        if len(voicing.instruction) >= self._profile.slot_positions // 2:
            raise InvalidRequest(
                "'instructions' are longer than a stream can hold.", param="instructions", code="input_too_large"
            )
        return voicing

    def live_text(self) -> LiveText:
        """An empty text that is still to be written."""
        return LiveText(self._tokenizer, ASSISTANT)

    def begin(self, utterance: LiveUtterance) -> Stream | None:
        """The stream of a live text, once the text has a token; the tokens go into it."""
        role, text = [self._config.ids.im_start, *utterance.tokens][:3], utterance.tokens[2:]
        if not text:
            return None
        whole = utterance.ended
        prompt = self._prompts.begin(utterance.voicing, (role[0], role[1], role[2]), text, whole=whole)
        if prompt is None:
            return None
        self._check_room(prompt)
        limit = self._budget(len(text)) if whole else self._profile.slot_positions
        return self._made(
            utterance.stream_id, prompt, utterance.options, utterance.deliver, limit, live=True, text_open=not whole
        )

    def has_room(self, stream: Stream, tokens: int) -> bool:
        """Whether `tokens` more, one a frame, fit in the stream's slot."""
        return len(stream.prompt) + stream.text_tokens + tokens <= self._profile.slot_positions

    def close_text(self, stream: Stream) -> None:
        """Tell a stream that its text has ended, unless it has known that from the start."""
        if stream.text_open:
            stream.close_text(self._config.ids.tts_eos, self._budget(stream.text_tokens))

    def description(
        self, *, model: str, speaks: bool, device: str, path: str, active: int, waiting: int
    ) -> Description:
        """What clients may know."""
        return Description(
            model=model,
            model_type=self._config.kind,
            model_size=self._config.size,
            speakers=self._voices.described(),
            voice_aliases=self._voices.aliases,
            model_aliases=list(self._profile.model_aliases),
            languages=self._voices.languages,
            sampling_defaults=dataclasses.asdict(self._defaults),
            sample_rate=SAMPLE_RATE,
            slot_positions=self._profile.slot_positions,
            max_active=self._profile.max_active,
            max_waiting=self._profile.max_waiting,
            active=active,
            waiting=waiting,
            device=device,
            path=path,
            speaks=speaks,
            embedding_size=self._config.talker.hidden if self._config.kind == "base" else 0,
        )

    def _clone(self, options: StreamOptions, voice: Voice | None) -> Voice | None:
        """The cloned voice to speak in: the one that came along, or one of those before by its name."""
        if self._config.kind != "base":
            if voice is not None:
                raise InvalidRequest("This model doesn't speak in cloned voices; a Base model does.", param=X_VECTOR)
            return None
        if voice is None:
            voice = self._clones.get(folded(options.voice)) if options.voice else None
            if voice is None:
                raise unknown_clone()
            return voice
        sizes = self._config.talker, self._config.predictor
        check_voice(voice, size=sizes[0].hidden, first_codes=self._config.codes, other_codes=sizes[1].vocabulary)
        if options.voice:
            self._clones.put(folded(options.voice), voice)
        return voice

    def _made(
        self,
        stream_id: str,
        prompt: Prompt,
        options: StreamOptions,
        deliver: Deliver,
        limit: int,
        *,
        live: bool,
        text_open: bool = False,
    ) -> Stream:
        mask_eos = options.mask_eos_until_text_end
        return Stream(
            stream_id,
            prompt,
            sampling=self.sampling(options),
            seed=secrets.randbits(63) if options.seed is None else options.seed,
            # A frame sampled last isn't fed back, so it takes no position.
            limit=min(options.max_new_tokens or limit, self._profile.slot_positions - len(prompt) + 1),
            chunk_schedule=options.stream_chunk_schedule or self._profile.chunk_schedule,
            # A client's own plan is kept to the letter.
            hurry_lead_s=float("-inf") if options.stream_chunk_schedule else self._profile.hurry_lead_ms / 1000,
            eos_id=self._config.ids.codec_eos,
            pad_id=self._config.ids.tts_pad,
            ignore_eos=options.ignore_eos,
            mask_eos=live if mask_eos is None else mask_eos,
            deliver=deliver,
            limit_is_asked=options.max_new_tokens is not None,
            text_open=text_open,
        )

    def _budget(self, text_tokens: int) -> int:
        """Frames that a text of this length may take: the model sometimes never stops by itself."""
        return self._profile.budget_base_frames + self._profile.budget_frames_per_token * text_tokens

    def _check_room(self, prompt: Prompt) -> None:
        if len(prompt) >= self._profile.slot_positions:
            raise InvalidRequest(
                f"'input' and 'instructions' are {len(prompt)} tokens together, "
                f"but {self._profile.slot_positions} must hold them and their speech.",
                param="input",
                code="input_too_large",
            )

    def sampling(self, options: StreamOptions) -> Sampling:
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


def _first(value: T | None, default: T) -> T:
    return default if value is None else value
