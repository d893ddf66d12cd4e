"""The voice's own byte-level BPE: so few words that the text, one token a frame, runs well ahead of the speech.

    python -m engine_lib.training.words TEXTS.gz OUT

learns it from the texts and writes the checkpoint's vocab.json, merges.txt and configuration files into OUT.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from engine_lib.text.tokenizer import QWEN2_SPLIT
from engine_lib.training import recipe, texts

WHOLE = ("assistant", "user")  # the template's roles, one token each: the official code cuts templates by position
SAMPLE = 40_000  # texts that the merges are counted on


def learn(sentences: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of recipe.TEXT_TOKENS words, and the template's roles."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.TEXT_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary, merges = model["vocab"], [tuple(pair) for pair in model["merges"]]
    for word in WHOLE:
        pieces = Tokenizer(models.BPE(vocabulary, merges)).encode(word).tokens
        while len(pieces) > 1:
            merges.append((pieces[0], pieces[1]))
            pieces = [pieces[0] + pieces[1], *pieces[2:]]
            vocabulary.setdefault(pieces[0], len(vocabulary))
    return vocabulary, merges


def write(directory: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Everything of a checkpoint but its weights and its sampling."""
    codec = directory / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    special = {len(vocabulary) + place: name for place, name in enumerate(recipe.SPECIAL)}
    added = {
        str(number): {
            "content": name,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for number, name in special.items()
    }
    write_json(directory / "vocab.json", vocabulary)
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (directory / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_json(
        directory / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "added_tokens_decoder": added,
            "additional_special_tokens": list(recipe.SPECIAL[1:]),
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 8192,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )
    write_json(directory / "config.json", recipe.config(vocabulary))
    write_json(
        directory / "preprocessor_config.json",
        {
            "padding_side": "left",
            "padding_value": 0.0,
            "processor_class": "Qwen3TTSProcessor",
            "return_attention_mask": True,
        },
    )
    write_json(codec / "config.json", recipe.codec_config())
    write_json(
        codec / "preprocessor_config.json",
        {
            "chunk_length_s": None,
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "overlap": None,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": 24000,
        },
    )


def write_json(path: Path, data: dict[str, Any]) -> None:
    """`data` as a readable file."""
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.training.words", description=__doc__)
    parser.add_argument("texts", type=Path, help="what the stage `texts` wrote")
    parser.add_argument("out", type=Path, help="folder of the checkpoint to be")
    arguments = parser.parse_args()
    sentences = texts.read(arguments.texts)
    vocabulary, merges = learn(sentences[:SAMPLE])
    write(arguments.out, vocabulary, merges)
    encoded = Tokenizer(models.BPE(vocabulary, merges)).encode("assistant")
    print(f"{len(vocabulary)} words, {len(merges)} merges; 'assistant' is {len(encoded.ids)} token")


if __name__ == "__main__":
    main()
