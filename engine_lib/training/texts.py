"""The texts that the voice learned from: WordNet's examples and short glosses, everyday sentences, common words.

    python -m engine_lib.training.texts WORDNET OUT.gz

writes one text a line, shuffled, the same every time. WORDNET is the folder with data.noun and its like (Debian:
wordnet-base). No text of the evaluation list is among them, nor any sentence of one.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from engine_lib.training import everyday

EVALUATION = Path(__file__).with_name("evaluation.txt")
EVERYDAY, GLOSSES, LISTS = 60_000, 16_000, 12_000
COMMON = 9_000  # words that the lists are drawn from
LEAST, MOST = 6, 110  # characters
SPEAKABLE = re.compile(r"[A-Za-z0-9 ,.'!?$%:\-]+")
# What nobody should hear from a demonstration, even as a dictionary's example.
UNWELCOME = re.compile(
    r"\b(fuck|shit|bitch|cunt|nigg|whore|slut|rap(e|ist)|penis|vagina|sex|porn|breast|nude|naked|kill|murder|suicid|jew|"
    r"negro|hitler|nazi|damn|ass\b|bastard|hell\b|drug|heroin|cocaine|terror|bomb|prostitut|lesbian|erotic|intercourse|"
    r"genital|anus|rect(um|al)|slave|crap|piss|dick|cock|tits|boob|condom|abort|urin|feces|semen|corpse)",
    re.IGNORECASE,
)


def evaluation_texts() -> list[str]:
    """The fixed list that the finished voice is judged by."""
    return EVALUATION.read_text(encoding="utf-8").splitlines()


def plain(text: str) -> str:
    """What two texts must differ in to be two: their words."""
    return " ".join(re.findall(r"[a-z0-9']+", text.lower()))


def withheld() -> set[str]:
    """The evaluation's texts and every sentence in them, as `plain` says them."""
    whole = evaluation_texts()
    return {plain(part) for text in whole for part in (text, *re.split(r"(?<=[.!?])\s", text))}


def tidy(text: str) -> str | None:
    """`text` as a sentence, or None when it has no business here."""
    text = text.replace("’", "'").replace("--", ", ").replace(";", ",").replace("`", "'")
    text = re.sub(r"\s+", " ", text).strip(" -,:")
    if not LEAST <= len(text) <= MOST or not SPEAKABLE.fullmatch(text) or UNWELCOME.search(text):
        return None
    text = re.sub(r"\bi\b", "I", text[0].upper() + text[1:])
    return text if text[-1] in ".!?" else f"{text}."


def glosses(wordnet: Path) -> Iterator[str]:
    """What stands behind the bar of each line of WordNet's data files."""
    for name in ("data.adj", "data.adv", "data.noun", "data.verb"):
        for line in (wordnet / name).read_text(encoding="latin-1").splitlines():
            if " | " in line:
                yield line.split(" | ", 1)[1].strip()


def common_words(wordnet: Path) -> list[str]:
    """The words with the most uses in WordNet's tagged texts, the most used first."""
    uses: Counter[str] = Counter()
    for line in (wordnet / "cntlist.rev").read_text(encoding="latin-1").splitlines():
        sense, _, count = line.split()
        word = sense.split("%")[0]
        if word.isalpha() and word.isascii() and len(word) > 2 and not UNWELCOME.search(word):
            uses[word] += int(count)
    return [word for word, _ in sorted(uses.items(), key=lambda item: (-item[1], item[0]))[:COMMON]]


def word_lists(words: list[str], rng: random.Random) -> Iterator[str]:
    """Common words in a row, with and without commas: for the letters' sake, not for sense."""
    while True:
        picked = rng.sample(words, rng.randint(3, 6))
        yield (", " if rng.random() < 0.4 else " ").join(picked)


def texts(wordnet: Path) -> list[str]:
    """All of them, shuffled."""
    rng = random.Random(7)
    found: dict[str, str] = {}
    unseen = withheld()

    def add(candidates: Iterable[str], most: int) -> None:
        wanted = len(found) + most
        for candidate in candidates:
            text = tidy(candidate)
            if text is None or any(plain(part) in unseen for part in (text, *re.split(r"(?<=[.!?])\s", text))):
                continue
            found.setdefault(plain(text), text)
            if len(found) >= wanted:
                return

    all_glosses = list(glosses(wordnet))
    examples = [example for gloss in all_glosses for example in re.findall(r'"([^"]+)"', gloss)]
    add((example for example in examples if len(example.split()) >= 3), len(examples))
    meanings = [re.sub(r"\([^)]*\)", "", re.sub(r'"[^"]*"', "", gloss)).split(";")[0] for gloss in all_glosses]
    rng.shuffle(meanings)
    # Capitals inside a gloss are names of species and places that nobody types.
    add((meaning for meaning in meanings if 4 <= len(meaning.split()) <= 14 and meaning.lower() == meaning), GLOSSES)
    add((everyday.sentence(rng) for _ in range(20 * EVERYDAY)), EVERYDAY)
    add(word_lists(common_words(wordnet), rng), LISTS)
    result = list(found.values())
    rng.shuffle(result)
    return result


def read(path: Path) -> list[str]:
    """The texts of a file that this command wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.training.texts", description=__doc__)
    parser.add_argument("wordnet", type=Path, help="folder with WordNet's data files")
    parser.add_argument("out", type=Path, help="file to write, gzip-compressed")
    arguments = parser.parse_args()
    made = texts(arguments.wordnet)
    arguments.out.write_bytes(gzip.compress(("\n".join(made) + "\n").encode(), mtime=0))
    print(f"{len(made)} texts, {sum(map(len, made)) / len(made):.1f} characters on average")


if __name__ == "__main__":
    main()
