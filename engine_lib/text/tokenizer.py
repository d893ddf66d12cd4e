"""Qwen2's byte-level BPE, and the chat template around a text (model.md 5.1).

Built straight on `tokenizers` rather than through transformers: there the loader may swap the pre-tokeniser's regex by
the directory's size and version, which the models never saw in training. No added token is registered, so what looks
like a control token inside a client's text is spelled out as text and can't act as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from engine_lib.errors import ConfigurationError

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

ASSISTANT = "assistant\n"  # the role in the template, right before a text


@dataclass(frozen=True)
class Piece:
    """A part of a text that becomes tokens by itself; `end` is the index behind its last character."""

    end: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Spoken:
    """A text in the assistant template: what lies where the template's role is, and the text's own tokens."""

    role: tuple[int, int, int]
    text: tuple[int, ...]


class TextTokenizer:
    """Tokens of texts and of the templates around them."""

    def __init__(self, directory: Path, *, im_start: int, im_end: int) -> None:
        """Read vocab.json and merges.txt. Raises ConfigurationError naming the directory."""
        try:
            model = models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt"))
        except Exception as error:  # tokenizers raises bare Exception
            raise ConfigurationError(f"{directory}: vocab.json and merges.txt can't be read: {error}") from error
        self._bpe = Tokenizer(model)
        self._nfc = normalizers.NFC()
        self._bpe.normalizer = self._nfc
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        self._im_start, self._im_end = im_start, im_end
        self._tail = [im_end, *self.encode("\n"), im_start, *self.encode(ASSISTANT)]  # behind a text to speak

    def encode(self, text: str) -> list[int]:
        """Tokens of a plain text."""
        return self._bpe.encode(text, add_special_tokens=False).ids

    def encode_pieces(self, text: str) -> list[Piece]:
        """Tokens of a normalised text by the pre-tokeniser's pieces, in order."""
        encoding = self._bpe.encode(text, add_special_tokens=False)
        tokens: dict[int | None, list[int]] = {}
        ends: dict[int | None, int] = {}
        for token, (_, end), piece in zip(encoding.ids, encoding.offsets, encoding.word_ids, strict=True):
            tokens.setdefault(piece, []).append(token)
            ends[piece] = max(end, ends.get(piece, 0))
        return [Piece(ends[piece], tuple(part)) for piece, part in tokens.items()]

    def normalise(self, text: str) -> str:
        """`text` as it is before it is cut: in NFC."""
        return self._nfc.normalize_str(text)

    def assistant(self, text: str) -> list[int]:
        """`text` in the template that asks for speech, up to where the assistant's speech would begin."""
        return [self._im_start, *self.encode(ASSISTANT + text), *self._tail]

    def spoken(self, text: str) -> Spoken:
        """Role and text tokens, cut by position like the official code: a leading newline may merge into the role."""
        ids = self.assistant(text)
        return Spoken(role=(ids[0], ids[1], ids[2]), text=tuple(ids[3:-5]))

    def reference(self, text: str) -> list[int]:
        """Tokens of what a voice's sample says, cut by position out of <|im_start|>assistant\\n...<|im_end|>\\n."""
        ids = [self._im_start, *self.encode(ASSISTANT + text), self._im_end, *self.encode("\n")]
        return ids[3:-2]

    def instruction(self, text: str) -> list[int]:
        """An instruction in its template: <|im_start|>user\\n...<|im_end|>\\n."""
        return [self._im_start, *self.encode(f"user\n{text}"), self._im_end, *self.encode("\n")]
