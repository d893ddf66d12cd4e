"""The prompt layouts (model.md 5.3 to 5.5) as plain lists of ids. Knows ids, knows no embeddings.

Every prompt position is the sum of a text-side and a codec-side embedding, either of which may be absent (NOTHING). The
codec side is an id, or of a cloned voice the x-vector or one frame of the sample: the third lane says which.
Past the prompt each frame adds one text-side embedding: the trailing ids in turn, then `tts_pad` for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_lib.errors import ConfigurationError, InvalidRequest
from engine_lib.profile import DEFAULT_PROFILE, load_profile
from engine_lib.talker.config import SpecialIds, TalkerConfig
from engine_lib.text.tokenizer import TextTokenizer
from engine_lib.wire import Voice, folded, known_language, unknown_voice

NOTHING = -1
SPEAKER = 0  # in the lane of the voice: the x-vector; n is the sample's n-th frame, counted from 1

Row = tuple[int, int, int]  # one position of the three lanes: text, codec, voice


@dataclass(frozen=True)
class Prompt:
    """Three lanes of equal length, and the text-side ids that the first frames add."""

    text: tuple[int, ...]
    codec: tuple[int, ...]
    trailing: tuple[int, ...]  # empty when the whole text is in the prompt
    text_tokens: int
    side: tuple[int, ...] = ()  # of `voice`: SPEAKER or a frame
    voice: Voice | None = None  # a cloned one
    before_text: int = 0  # positions at its beginning that are the same for every text; never all of them

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class Voicing:
    """The prompt's rows for who speaks and how: an instruction's text tokens, then control rows.

    `reference`: the tokens of what a cloned voice says in its sample; the prompt then goes on from the sample.
    """

    instruction: tuple[int, ...]
    control: tuple[Row, ...]
    voice: Voice | None = None
    reference: tuple[int, ...] = ()


class Voices:
    """The checkpoint's speakers and languages under every name that a client may use for them."""

    def __init__(self, config: TalkerConfig, aliases: Mapping[str, str]) -> None:
        """Raises ConfigurationError for an alias that stands for nobody, unless it is one of the package's."""
        self._config = config
        self._speakers = {folded(name): name for name in config.speaker_ids}
        names = list(config.speaker_ids)
        # Where all voices are cloned, a name is the client's to give: also one of these.
        aliases = {} if config.kind == "base" else aliases
        for alias, speaker in aliases.items() - load_profile(DEFAULT_PROFILE).voice_aliases.items():
            if names and folded(speaker) not in self._speakers:
                raise ConfigurationError(
                    f"Voice alias '{alias}' stands for '{speaker}', who isn't one of {', '.join(names)}.",
                    param="voice_aliases",
                )
        # A client of OpenAI's must be able to speak here, so these names speak with any checkpoint, each in one voice.
        self.aliases = {
            alias: self._speakers.get(folded(target), names[place % len(names)] if names else "")
            for place, (alias, target) in enumerate(aliases.items())
        }
        self._aliases = {folded(alias): target for alias, target in self.aliases.items()}
        self.languages = ["auto", *config.language_ids]

    def speaker(self, name: str | None) -> str | None:
        """The speaker for a requested name, the first when none is requested, None where the model has none.

        Case, spaces, hyphens and underscores don't matter. Raises InvalidRequest naming the known speakers.
        """
        if name is None:
            return next(iter(self._config.speaker_ids), None)
        wanted = folded(name)
        if wanted in self._speakers:
            return self._speakers[wanted]
        if wanted in self._aliases:
            return self._aliases[wanted] or None
        raise unknown_voice(self._speakers.values())

    def language_id(self, language: str | None, speaker: str | None) -> int | None:
        """The codec id of a requested language, or None for none (model.md 5.2).

        A dialect speaker speaks it for Chinese and when no language is requested. Raises InvalidRequest.
        """
        wanted = known_language(language, self.languages)
        if wanted in ("auto", "chinese") and speaker is not None and speaker in self._config.speaker_dialects:
            return self._config.language_ids[self._config.speaker_dialects[speaker]]
        return None if wanted == "auto" else self._config.language_ids[wanted]

    def described(self) -> list[dict[str, str]]:
        """Every speaker as a client sees it, with the language that it is at home in."""
        known = [*self._config.language_ids]
        common = known[0] if len(known) == 1 else "multilingual"
        return [
            {
                "id": name,
                "name": name.replace("_", " ").title(),
                "language": self._config.speaker_dialects.get(name, common),
            }
            for name in self._config.speaker_ids
        ]


class PromptBuilder:
    """Builds prompts of one checkpoint."""

    def __init__(self, config: TalkerConfig, tokenizer: TextTokenizer, voices: Voices) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._voices = voices

    def build(self, text: str, voicing: Voicing, *, streaming: bool) -> Prompt:
        """The prompt for `text`. `streaming` feeds it one token a frame, else the whole text stands in the prompt.

        Raises InvalidRequest when no token of it is spoken.
        """
        ids = self._config.ids
        spoken = self._tokenizer.spoken(text)
        if not spoken.text:
            raise InvalidRequest("'input' holds nothing to speak.", param="input", code="empty_input")
        if streaming:
            return self._overlaid(voicing, spoken.role, spoken.text, whole=True)
        said = [(token, ids.codec_pad, NOTHING) for token in (*voicing.reference, *spoken.text, ids.tts_eos)]
        heard = [(ids.tts_pad, codec, side) for codec, side in self._sound(voicing)]
        return self._prompt(voicing, spoken.role, [*said, *heard], (), len(spoken.text))

    def begin(self, voicing: Voicing, role: tuple[int, int, int], text: Sequence[int], *, whole: bool) -> Prompt | None:
        """The streaming layout's prompt for a text that begins with the tokens `text`; more may be fed unless `whole`.

        None while it needs more of them. Only a voice that goes on from its sample needs more than one: as many as the
        sample has frames beyond its own text.
        """
        if not text or (not whole and len(voicing.reference) + len(text) < len(self._sound(voicing))):
            return None
        return self._overlaid(voicing, role, text, whole=whole)

    def voicing(
        self, *, voice: str | None, language: str | None, instructions: str | None, clone: Voice | None = None
    ) -> Voicing:
        """The rows for who speaks and how; `clone` takes the place of a voice by name.

        Raises InvalidRequest for an unknown voice or language.
        """
        ids = self._config.ids
        speaker = None if clone else self._voices.speaker(voice)
        language_id = self._voices.language_id(language, speaker)
        heard = instructions if self._config.takes_instructions else None
        who: list[tuple[int, int]] = []  # the codec lane and the lane of the voice
        if clone:
            who = [(NOTHING, SPEAKER)]
        elif speaker is not None:
            who = [(self._config.speaker_ids[speaker], NOTHING)]
        return Voicing(
            instruction=tuple(self._tokenizer.instruction(heard)) if heard else (),
            control=tuple(_control(ids, language_id, who)),
            voice=clone,
            reference=tuple(self._tokenizer.reference(clone.text)) if clone and clone.text else (),
        )

    def _overlaid(self, voicing: Voicing, role: tuple[int, int, int], text: Sequence[int], *, whole: bool) -> Prompt:
        """Text and sound side by side from the start; what is left of the text trails."""
        ids = self._config.ids
        said = [*voicing.reference, *text, *([ids.tts_eos] if whole else [])]
        heard = self._sound(voicing)
        trailing = tuple(said[len(heard) :])
        said = said[: len(heard)] + [ids.tts_pad] * (len(heard) - len(said))
        rows = [(token, codec, side) for token, (codec, side) in zip(said, heard, strict=True)]
        return self._prompt(voicing, role, rows, trailing, len(text))

    def _sound(self, voicing: Voicing) -> list[tuple[int, int]]:
        """Codec lane and lane of the voice where speech begins: its start, and the sample's frames to go on from."""
        frames = len(voicing.voice.codes) if voicing.voice else 0
        return [(self._config.ids.codec_bos, NOTHING), *((NOTHING, number) for number in range(1, frames + 1))]

    def _prompt(
        self,
        voicing: Voicing,
        role: tuple[int, int, int],
        rows: list[Row],
        trailing: tuple[int, ...],
        text_tokens: int,
    ) -> Prompt:
        before = [(token, NOTHING, NOTHING) for token in (*voicing.instruction, *role)]
        text_lane, codec_lane, side = zip(*before, *voicing.control, *rows, strict=True)
        # In both layouts a sample's own text stands where the text would begin.
        before_text = len(before) + len(voicing.control) + len(voicing.reference)
        return Prompt(
            text_lane, codec_lane, trailing, text_tokens, side, voicing.voice, min(before_text, len(text_lane) - 1)
        )


def _control(ids: SpecialIds, language: int | None, speaker: list[tuple[int, int]]) -> list[Row]:
    """Language and speaker rows: the codec side says which, the text side is padding and at last the text's start."""
    if language is None:
        codec = [ids.nothink, ids.think_bos, ids.think_eos]
    else:
        codec = [ids.think, ids.think_bos, language, ids.think_eos]
    rows = [(ids.tts_pad, code, NOTHING) for code in codec]
    rows += [(ids.tts_pad, code, side) for code, side in speaker]
    return [*rows, (ids.tts_bos, ids.codec_pad, NOTHING)]
