"""The prompt layouts (model.md 5.3, 5.4) as plain lists of ids. Knows ids, knows no embeddings.

Every prompt position is the sum of a text-side and a codec-side embedding, either of which may be absent (NOTHING).
Past the prompt each frame adds one text-side embedding: the trailing ids in turn, then `tts_pad` for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine_lib.errors import InvalidRequest
from engine_lib.talker.config import SpecialIds, TalkerConfig
from engine_lib.text.tokenizer import TextTokenizer
from engine_lib.wire import folded, unknown_language, unknown_voice

NOTHING = -1


@dataclass(frozen=True)
class Prompt:
    """Two lanes of equal length, and the text-side ids that the first frames add."""

    text: tuple[int, ...]
    codec: tuple[int, ...]
    trailing: tuple[int, ...]  # empty when the whole text is in the prompt
    text_tokens: int

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class Voicing:
    """The prompt's rows for who speaks and how: an instruction's text tokens, then (text, codec) control rows."""

    instruction: tuple[int, ...]
    control: tuple[tuple[int, int], ...]


class Voices:
    """The checkpoint's speakers and languages under every name that a client may use for them."""

    def __init__(self, config: TalkerConfig, aliases: Mapping[str, str]) -> None:
        self._config = config
        self._speakers = {folded(name): name for name in config.speaker_ids}
        names = list(config.speaker_ids)
        # An alias for a speaker that this checkpoint lacks still has to speak, always in the same voice.
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
        wanted = (language or "auto").strip().lower()
        if wanted in ("auto", "chinese") and speaker is not None and speaker in self._config.speaker_dialects:
            return self._config.language_ids[self._config.speaker_dialects[speaker]]
        if wanted == "auto":
            return None
        if wanted not in self._config.language_ids:
            raise unknown_language(self.languages)
        return self._config.language_ids[wanted]

    def described(self) -> list[dict[str, str]]:
        """Every speaker as a client sees it."""
        return [
            {
                "id": name,
                "name": name.replace("_", " ").title(),
                "language": self._config.speaker_dialects.get(name, "multilingual"),
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
            first, *rest = spoken.text
            return self.begin(voicing, spoken.role, first, (*rest, ids.tts_eos), len(spoken.text))
        lanes = [(token, ids.codec_pad) for token in (*spoken.text, ids.tts_eos)]
        lanes.append((ids.tts_pad, ids.codec_bos))
        return self._prompt(voicing, spoken.role, lanes, (), len(spoken.text))

    def begin(
        self,
        voicing: Voicing,
        role: tuple[int, int, int],
        first: int,
        trailing: tuple[int, ...] = (),
        text_tokens: int = 1,
    ) -> Prompt:
        """The streaming layout's prompt for a text that begins with the token `first`; more may be fed later."""
        return self._prompt(voicing, role, [(first, self._config.ids.codec_bos)], trailing, text_tokens)

    def voicing(self, *, voice: str | None, language: str | None, instructions: str | None) -> Voicing:
        """The rows for who speaks and how. Raises InvalidRequest for an unknown voice or language."""
        speaker = self._voices.speaker(voice)
        language_id = self._voices.language_id(language, speaker)
        heard = instructions if self._config.takes_instructions else None
        return Voicing(
            instruction=tuple(self._tokenizer.instruction(heard)) if heard else (),
            control=tuple(_control(self._config.ids, language_id, self._speaker_id(speaker))),
        )

    def _prompt(
        self,
        voicing: Voicing,
        role: tuple[int, int, int],
        text_lanes: list[tuple[int, int]],
        trailing: tuple[int, ...],
        text_tokens: int,
    ) -> Prompt:
        before = [(token, NOTHING) for token in (*voicing.instruction, *role)]
        text_lane, codec_lane = zip(*before, *voicing.control, *text_lanes, strict=True)
        return Prompt(text_lane, codec_lane, trailing, text_tokens)

    def _speaker_id(self, speaker: str | None) -> int | None:
        return None if speaker is None else self._config.speaker_ids[speaker]


def _control(ids: SpecialIds, language: int | None, speaker: int | None) -> list[tuple[int, int]]:
    """Language and speaker rows: the codec side says which, the text side is padding and at last the text's start."""
    if language is None:
        codec = [ids.nothink, ids.think_bos, ids.think_eos]
    else:
        codec = [ids.think, ids.think_bos, language, ids.think_eos]
    if speaker is not None:
        codec.append(speaker)
    return [(ids.tts_pad, code) for code in codec] + [(ids.tts_bos, ids.codec_pad)]
