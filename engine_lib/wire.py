"""The contract between clients, proxy and the Triton models: tensor names, actions, options, the description.

The config.pbtxt files in model_repository obey this module; a test compares them. Torch-free, so the proxy may use it.
"""

from __future__ import annotations

import enum
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from engine_lib.errors import InvalidRequest, ServiceError

# Models of the repository.
TTS, TALKER, CODEC, VOICE = "tts", "talker", "codec", "voice"

# Tensors. Strings are BYTES of UTF-8, shape [1], unless said otherwise.
TEXT = "TEXT"
OPTIONS = "OPTIONS"  # a JSON object, see StreamOptions
STREAM_ID = "STREAM_ID"
ACTION = "ACTION"
SEQUENCE = "SEQUENCE"  # INT32 [1]: 0, 1, 2, ... over the append and end actions of one stream
CODES = "CODES"  # INT32 [frames, 16]
INDEX = "INDEX"  # INT32 [1]: 0, 1, 2, ... over the chunks of one stream
LAST = "LAST"  # BOOL [1]
FINISH_REASON = "FINISH_REASON"  # empty before the last chunk
USAGE = "USAGE"  # INT32 [2]: text tokens, frames spoken so far
DESCRIPTION = "DESCRIPTION"  # a JSON object, see Description; only the answer to ACTION=describe carries it
PCM = "PCM"  # INT16 [samples] at SAMPLE_RATE
# A cloned voice: what `voice` makes of a sample, and what a start brings to speak like it. A start that also names a
# voice in OPTIONS has it remembered for a while, for later starts that only name it.
AUDIO = "AUDIO"  # FP32 [samples] at SAMPLE_RATE, mono; none at all is a heartbeat
X_VECTOR = "X_VECTOR"  # FP32 [Description.embedding_size]
REF_CODES = "REF_CODES"  # INT32 [frames, 16] of the sample; only together with REF_TEXT
REF_TEXT = "REF_TEXT"  # what is said in the sample
PRIMER = "PRIMER"  # INT32 [frames, 16]: codes that codec takes as the past; only the first chunk may have some

SAMPLE_RATE = 24_000  # Hz
SAMPLES_PER_FRAME = 1_920
CODEBOOKS = 16
FRAME_SECONDS = SAMPLES_PER_FRAME / SAMPLE_RATE

MAX_SEED = 2**63 - 1
MAX_CHARACTERS = 65_536  # of one utterance's text
MIN_SAMPLE_S, MAX_SAMPLE_S = 1, 30  # of a voice
MAX_REF_CHARACTERS = 2_000  # of what is said in it
SILENT_PEAK = 10 ** (-50 / 20)  # a sample that never gets louder than this is silence

_NOT_TELLING = str.maketrans("", "", " \t-_")
_SURROGATE = re.compile("[\ud800-\udfff]")


AUTO = "auto"  # the language that is found by the text


class Action(enum.StrEnum):
    """What a request to `talker` asks for. The ensemble `tts` only starts streams."""

    START = "start"  # speak TEXT, which is all
    # Speak TEXT, which may be empty, and what appends add, until the end. Streaming layout; EOS masked by default.
    START_LIVE = "start_live"
    # Add TEXT (append) or close the text (end) of a live stream. SEQUENCE counts both from 0. Acknowledged by one
    # response once the engine has taken it: USAGE[0] is the number of text tokens committed so far; above 0 the stream
    # has something to speak. What comes before its start is held until that. Errors: invalid_sequence, invalid_text,
    # input_too_large, not_found (no such stream: it has ended, or never began).
    APPEND = "append"
    END = "end"
    CANCEL = "cancel"  # acknowledged in any case; the stream's own last chunk says cancelled
    DESCRIBE = "describe"


class FinishReason(enum.StrEnum):
    """Why a stream ended. `failed` never reaches a client as data: codec turns it into an error."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


def _int(least: int, most: int, default: Any = None) -> Any:
    return Field(default, ge=least, le=most)


Probability = Annotated[float, Field(gt=0, le=1)]
Temperature = Annotated[float, Field(ge=0, le=5)]
TopK = Annotated[int, Field(ge=0, le=2**31 - 1)]


class StreamOptions(BaseModel):
    """What a client may set for one utterance besides its text (api.md, the request fields).

    A null field counts as left out, unknown fields are ignored, numbers are never parsed from strings, NaN and
    infinities are refused. None means: the checkpoint's default, or none.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False, populate_by_name=True)

    voice: str | None = Field(
        None,
        validation_alias=AliasChoices("voice", "speaker"),
        max_length=256,
        description="A speaker's name, or {\"id\": name}; case, spaces, hyphens and underscores don't matter.",
    )
    instructions: str | None = Field(
        None,
        validation_alias=AliasChoices("instructions", "instruct"),
        max_length=4096,
        description="How to speak, in words.",
    )
    language: str | None = Field(None, max_length=64, description="A language of the checkpoint, or auto.")
    seed: int | None = _int(0, MAX_SEED)
    do_sample: bool | None = None
    temperature: Temperature | None = Field(None, description="0 is greedy.")
    top_k: TopK | None = Field(None, description="0 is all.")
    top_p: Probability | None = None
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    subtalker_dosample: bool | None = None
    subtalker_temperature: Temperature | None = None
    subtalker_top_k: TopK | None = None
    subtalker_top_p: Probability | None = None
    max_new_tokens: int | None = Field(
        None, ge=2, le=2**31 - 1, description="Frames to sample at most; the last has no sound."
    )
    non_streaming_mode: bool | None = Field(
        None,
        description="True: the whole text in the prompt. False: one text token a frame. "
        "Default, as in the official package: true, but false for cloned voices.",
    )
    x_vector_only_mode: bool | None = Field(
        None,
        description="True: of a cloned voice use only the x-vector, not the sample's own codes and text. "
        "Default: false, true for live text, which then needn't wait for as much text as the sample has frames.",
    )
    stream_chunk_schedule: list[Annotated[int, Field(ge=1, le=100_000)]] | None = Field(
        None, min_length=1, max_length=256, description="Frames per chunk; the last number repeats."
    )
    ignore_eos: bool = Field(False, description="Never stop before the budget; for load tests.")
    mask_eos_until_text_end: bool | None = Field(
        None,
        description="Streaming layout: no end of speech before the text's end. Default: false, true for live text.",
    )

    _voice_sent_as: str = PrivateAttr("voice")

    @model_validator(mode="wrap")
    @classmethod
    def _note_the_name_of_the_voice(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        made = handler(data)
        if isinstance(data, Mapping) and data.get("voice") is None and data.get("speaker") is not None:
            made._voice_sent_as = "speaker"
        return made

    def in_its_words(self, error: ServiceError) -> ServiceError:
        """The same error, where it names the voice under the name that was sent: that has two."""
        if error.param == "voice":
            error.param = self._voice_sent_as
        return error

    @model_validator(mode="before")
    @classmethod
    def _null_counts_as_left_out(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, Mapping) else data

    @field_validator("voice", mode="before")
    @classmethod
    def _voice_may_be_an_object(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if "id" not in value:
            raise ValueError('must be a name or {"id": name}')
        return value["id"]

    @field_validator("voice", "instructions", "language")
    @classmethod
    def _clean_text(cls, value: str | None) -> str | None:
        if value is not None and (problem := text_problem(value)):
            raise ValueError(problem)
        return value


class Description(BaseModel):
    """The answer to ACTION=describe: what a proxy, also a remote one, needs to know of the engine behind Triton."""

    model_config = ConfigDict(frozen=True)

    model: str  # an id, or the name of a local directory
    model_type: str  # custom_voice, voice_design, base
    model_size: str
    speakers: list[dict[str, str]]  # {"id", "name", "language"}
    voice_aliases: dict[str, str]
    model_aliases: list[str]  # other names that clients may use for the model
    languages: list[str]
    sampling_defaults: dict[str, bool | int | float]
    sample_rate: int
    slot_positions: int
    max_active: int
    max_waiting: int
    active: int
    waiting: int
    device: str
    path: str  # plain, or the name of the fast path
    speaks: bool  # False: random weights, only noise comes out
    embedding_size: int = 0  # numbers in an x-vector; 0: this model doesn't speak in cloned voices


def _no_codes() -> npt.NDArray[np.int32]:
    return np.empty((0, CODEBOOKS), np.int32)


@dataclass(frozen=True, eq=False)
class Voice:
    """Who speaks. With codes and text the model goes on from the sample itself; without, it has the x-vector alone.

    x_vector: float32 [hidden]. codes: int32 [frames, 16] of the sample, with the text that is spoken in it.
    """

    x_vector: npt.NDArray[np.float32]
    codes: npt.NDArray[np.int32] = field(default_factory=_no_codes)
    text: str = ""

    @property
    def alike(self) -> Voice:
        """The same speaker by the x-vector alone."""
        return self if not len(self.codes) else Voice(self.x_vector)


def folded(name: str) -> str:
    """A voice's name without what doesn't tell voices apart: case, spaces, hyphens, underscores."""
    return name.casefold().translate(_NOT_TELLING)


def unknown_voice(speakers: Iterable[str]) -> InvalidRequest:
    """The refusal of a voice that isn't among `speakers`."""
    known = ", ".join(speakers) or "none: describe the voice in 'instructions' instead"
    return InvalidRequest(f"Unknown voice. This model's voices: {known}.", param="voice")


def unknown_clone() -> InvalidRequest:
    """The refusal of a voice that a model with nothing but cloned voices doesn't have."""
    return InvalidRequest(
        "Unknown voice. This model speaks in cloned voices: name one that you have added, or give a sample.",
        param="voice",
    )


def known_language(asked: str | None, languages: Iterable[str]) -> str:
    """The one of `languages` that is asked for, whatever its case and outer spaces; "auto" where none is.

    Raises InvalidRequest for any other, an empty one too.
    """
    name = AUTO if asked is None else asked.strip().lower()
    known = [*languages]
    if name not in {AUTO, *known}:
        raise InvalidRequest(f"Unknown language. This model's languages: {', '.join(known)}.", param="language")
    return name


def sample_problem(samples: npt.NDArray[np.float32]) -> str | None:
    """Why a voice can't be taken from float32 [samples] at SAMPLE_RATE, in words for a client, or None."""
    seconds = len(samples) / SAMPLE_RATE
    if not MIN_SAMPLE_S <= seconds <= MAX_SAMPLE_S:
        return f"must last {MIN_SAMPLE_S} to {MAX_SAMPLE_S} s, not {seconds:.1f} s"
    if not np.isfinite(samples).all():
        return "holds numbers that aren't finite"
    if np.abs(samples).max() < SILENT_PEAK:
        return "is silent"
    return None


def text_problem(text: str) -> str | None:
    """Why `text` can't be spoken, in words for a client, or None. Knows only what no tokenizer can take."""
    if "\x00" in text:
        return "contains a NUL character"
    if _SURROGATE.search(text):
        return "contains a lone surrogate, so it isn't valid Unicode text"
    return None


def check_text(text: str, *, param: str = "input") -> str:
    """`text`, or InvalidRequest that names `param` when nothing in it could be spoken or it isn't valid text."""
    if problem := text_problem(text):
        raise InvalidRequest(f"'{param}' {problem}.", param=param, code="invalid_text")
    if not is_visible(text):
        raise InvalidRequest(f"'{param}' must not be blank.", param=param, code="empty_input")
    return text


def is_visible(text: str) -> bool:
    """False for white space, control, format and unassigned characters: they alone make a text blank."""
    return any(unicodedata.category(character)[0] not in "ZC" for character in text)


def parse_options(text: str) -> StreamOptions:
    """StreamOptions from the OPTIONS tensor's JSON. Raises InvalidRequest naming the field."""
    try:
        data = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise InvalidRequest("OPTIONS is not valid JSON.", param="OPTIONS") from None
    if not isinstance(data, dict):
        raise InvalidRequest("OPTIONS must be a JSON object.", param="OPTIONS")
    try:
        return StreamOptions.model_validate(data)
    except ValidationError as error:
        raise invalid_field(error) from None


def invalid_field(error: ValidationError) -> InvalidRequest:
    """The first complaint of a ValidationError as InvalidRequest: field and reason, never the refused value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = str(first["loc"][0]) if first["loc"] else "body"
    reason = first["msg"].removeprefix("Value error, ")
    return InvalidRequest(f"Invalid value for '{field}': {reason}.", param=field)
