"""Write inputs/*.json: texts of three lengths for perf_analyzer. `uv run python -m perf_analyzer_configs.make_inputs`.

Speech gets as long as its text takes to say (ignore_eos, max_new_tokens), so that random weights will do.
"""

from __future__ import annotations

import json
from pathlib import Path

from proxy.bench.texts import frames_of, read_texts

FOLDER = Path(__file__).parent / "inputs"
SHORT = (
    "Good morning.", "Your table is ready.", "Please hold the line.", "The train leaves at nine.", "Who is speaking?",
    "It starts to rain.", "Turn left here.", "I will call you back.", "That is all for today.", "The door is open.",
    "See you on Friday.", "Mind the gap, please.", "We are almost there.", "Thank you for waiting.", "Is anybody home?",
    "Dinner is on the table.",
)  # fmt: skip
COUNT = 64  # longer texts of each kind; perf_analyzer begins again after the last


def texts() -> dict[str, list[str]]:
    """Length -> texts: a second or two, a sentence of 4 to 5 s, four sentences."""
    sentences = read_texts("en")
    return {
        "short": [*SHORT],
        "medium": sentences[:COUNT],
        "long": [" ".join(sentences[4 * number : 4 * number + 4]) for number in range(COUNT)],
    }


def file_of(lines: list[str]) -> str:
    """What perf_analyzer reads with --input-data."""
    data = []
    for seed, text in enumerate(lines):
        options = {"seed": seed, "ignore_eos": True, "max_new_tokens": frames_of(text) + 1}
        data.append({"TEXT": [text], "OPTIONS": [json.dumps(options)]})
    entries = ",\n    ".join(json.dumps(entry) for entry in data)
    return f'{{\n  "data": [\n    {entries}\n  ]\n}}\n'


def main() -> None:
    """Write them."""
    for name, lines in texts().items():
        (FOLDER / f"{name}.json").write_text(file_of(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
