"""The options of `bench` and `bench-report`. Imports nothing that takes long: every command reads this."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

OVER = ("http", "ws", "grpc")


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """Those of `bench`."""
    parser.add_argument("--over", choices=OVER, default="http", help="how requests travel (http)")
    parser.add_argument("--triton", metavar="HOST:PORT", default="127.0.0.1:8001", help="for --over grpc (%(default)s)")
    parser.add_argument(
        "--rate", type=_positive, nargs="+", default=[1.0, 4.0, 10.0, 20.0], metavar="R",
        help="requests a second, one level after the other (1 4 10 20)",
    )  # fmt: skip
    parser.add_argument("--seconds", type=_positive, default=60.0, metavar="S", help="measured, at each rate (60)")
    parser.add_argument(
        "--warmup", type=_not_negative, default=10.0, metavar="S", help="before that, not measured (10)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of arrivals, texts and sampling (1)")
    parser.add_argument(
        "--texts", default="en", metavar="en|zh|FILE", help="what to say; a file has a text a line (en)"
    )
    parser.add_argument(
        "--lengths", choices=["text", "model"], default="text",
        help="text: speech as long as its text takes to say, also with random weights (fields ignore_eos and "
        "max_new_tokens); model: as the model sees fit, and no such fields, for other servers (text)",
    )  # fmt: skip
    parser.add_argument("--format", choices=["pcm", "wav"], default="pcm", help="of the sound, over HTTP (pcm)")
    parser.add_argument("--sample-rate", type=int, default=24_000, metavar="HZ", help="that the server sends (24000)")
    parser.add_argument("--model", help="the model's name, for servers that want one")
    parser.add_argument("--voice", help="the voice's name; the server's default otherwise")
    parser.add_argument(
        "--field", type=_field, action="append", default=[], metavar="NAME=JSON",
        help="another field of each request, e.g. stream=true",
    )  # fmt: skip
    parser.add_argument("--timeout", type=_positive, default=120.0, metavar="S", help="that one request may take (120)")
    parser.add_argument("--label", help="the name of this run in tables and plots (the way and place of the target)")
    parser.add_argument(
        "--note", type=_note, action="append", default=[], metavar="NAME=TEXT",
        help="goes into the results: card=H200, commit=1a2b3c4, ...",
    )  # fmt: skip
    _add_output(parser)


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Those of `bench-report`."""
    parser.add_argument("results", type=Path, nargs="+", metavar="FILE.json", help="what bench has written")
    _add_output(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("bench"), metavar="PREFIX",
        help="writes PREFIX.json, PREFIX.md and PREFIX.png (bench)",
    )  # fmt: skip
    parser.add_argument("--no-plot", action="store_true", help="write no PREFIX.png (and don't need matplotlib)")


def _positive(text: str) -> float:
    if (number := _number(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def _not_negative(text: str) -> float:
    if (number := _number(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return number


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return number


def _note(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} isn't NAME=...")
    return name, value


def _field(text: str) -> tuple[str, Any]:
    name, value = _note(text)
    try:
        return name, json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: what follows = must be JSON (a string in quotes)") from None
