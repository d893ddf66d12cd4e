"""What config.json and generation_config.json say of the talker, checked once; no size is assumed (model.md 1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_lib.errors import ConfigurationError
from engine_lib.files import Section, read_json

MODEL_TYPE = "qwen3_tts"
KINDS = ("custom_voice", "voice_design", "base")
SUPPRESSED_TAIL = 1024  # ids at the vocabulary's end that are never sampled, except the end of speech


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of one stack of decoder layers."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocabulary: int


@dataclass(frozen=True)
class SpecialIds:
    """Token ids of the prompt: text side, then codec side."""

    im_start: int
    im_end: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    codec_pad: int
    codec_bos: int
    codec_eos: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True)
class TalkerConfig:
    """A checkpoint's config.json, as far as talking needs it."""

    kind: str  # custom_voice, voice_design or base
    size: str  # "0b6" or "1b7"
    talker: TransformerConfig
    predictor: TransformerConfig
    text_vocabulary: int
    text_hidden: int
    code_groups: int
    ids: SpecialIds
    language_ids: Mapping[str, int]
    speaker_ids: Mapping[str, int]
    speaker_dialects: Mapping[str, str]  # only the speakers that have one

    @classmethod
    def from_directory(cls, directory: Path) -> TalkerConfig:
        """Read `directory`/config.json. Raises ConfigurationError naming the key that's missing or wrong."""
        top = Section(read_json(directory / "config.json"), "config.json")
        if top.text("model_type") != MODEL_TYPE:
            raise ConfigurationError(f"{directory}: model_type is {top.text('model_type')!r}, not {MODEL_TYPE!r}.")
        kind = top.text("tts_model_type")
        if kind not in KINDS:
            raise ConfigurationError(f"{directory}: tts_model_type {kind!r} isn't one of {', '.join(KINDS)}.")
        talker, predictor = top.section("talker_config"), top.section("talker_config").section("code_predictor_config")
        # The other kinds have no speakers, whatever their file lists (model.md 5.5).
        speakers = talker.mapping("spk_id") if kind == "custom_voice" else {}
        dialects = talker.mapping("spk_is_dialect")
        config = cls(
            kind=kind,
            size=top.text("tts_model_size"),
            talker=_transformer(talker),
            predictor=_transformer(predictor),
            text_vocabulary=talker.whole("text_vocab_size"),
            text_hidden=talker.whole("text_hidden_size"),
            code_groups=talker.whole("num_code_groups"),
            ids=SpecialIds(
                im_start=top.whole("im_start_token_id"),
                im_end=top.whole("im_end_token_id"),
                tts_pad=top.whole("tts_pad_token_id"),
                tts_bos=top.whole("tts_bos_token_id"),
                tts_eos=top.whole("tts_eos_token_id"),
                codec_pad=talker.whole("codec_pad_id"),
                codec_bos=talker.whole("codec_bos_id"),
                codec_eos=talker.whole("codec_eos_token_id"),
                think=talker.whole("codec_think_id"),
                nothink=talker.whole("codec_nothink_id"),
                think_bos=talker.whole("codec_think_bos_id"),
                think_eos=talker.whole("codec_think_eos_id"),
            ),
            language_ids=talker.mapping("codec_language_id"),
            speaker_ids=speakers,
            speaker_dialects={name: dialect for name, dialect in dialects.items() if dialect},
        )
        config._check()
        return config

    @property
    def codes(self) -> int:
        """Ids 0..codes-1 of the talker's vocabulary are codes of the first codebook."""
        return self.talker.vocabulary - SUPPRESSED_TAIL

    @property
    def takes_instructions(self) -> bool:
        """The small CustomVoice model drops them, as the official package does (model.md 5.3)."""
        return self.kind == "voice_design" or (self.kind == "custom_voice" and self.size != "0b6")

    def _check(self) -> None:
        if self.kind == "custom_voice" and not self.speaker_ids:
            raise ConfigurationError("config.json: a custom_voice checkpoint needs speakers in 'spk_id'.")
        if self.code_groups != 16:
            raise ConfigurationError(f"config.json: num_code_groups is {self.code_groups}, but a frame has 16 codes.")
        for name, dialect in self.speaker_dialects.items():
            if dialect not in self.language_ids:
                raise ConfigurationError(f"config.json: speaker {name!r} has the unknown dialect {dialect!r}.")


@dataclass(frozen=True)
class SamplingDefaults:
    """generation_config.json over the official package's own defaults (model.md 5.6)."""

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_dosample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0

    @classmethod
    def from_directory(cls, directory: Path) -> SamplingDefaults:
        """Read `directory`/generation_config.json where it is there."""
        path = directory / "generation_config.json"
        if not path.is_file():
            return cls()
        data = Section(read_json(path), "generation_config.json")
        own = cls()
        return cls(
            do_sample=data.flag("do_sample", own.do_sample),
            temperature=data.number("temperature", own.temperature),
            top_k=data.whole("top_k", own.top_k),
            top_p=data.number("top_p", own.top_p),
            repetition_penalty=data.number("repetition_penalty", own.repetition_penalty),
            subtalker_dosample=data.flag("subtalker_dosample", own.subtalker_dosample),
            subtalker_temperature=data.number("subtalker_temperature", own.subtalker_temperature),
            subtalker_top_k=data.whole("subtalker_top_k", own.subtalker_top_k),
            subtalker_top_p=data.number("subtalker_top_p", own.subtalker_top_p),
        )


def _transformer(section: Section) -> TransformerConfig:
    if section.text("hidden_act", "silu") != "silu" or section.flag("attention_bias", False):
        raise ConfigurationError(f"{section.where}: only hidden_act silu without attention_bias is known.")
    hidden, heads = section.size("hidden_size"), section.size("num_attention_heads")
    return TransformerConfig(
        hidden=hidden,
        intermediate=section.size("intermediate_size"),
        layers=section.size("num_hidden_layers"),
        heads=heads,
        kv_heads=section.size("num_key_value_heads"),
        head_dim=section.size("head_dim", hidden // heads),
        rms_norm_eps=section.scale("rms_norm_eps"),
        rope_theta=section.scale("rope_theta"),
        vocabulary=section.size("vocab_size"),
    )
