"""Run perf_analyzer against the ensemble `tts` and write a table. Needs nothing but Python 3.10 and perf_analyzer.

    python3 perf_analyzer_configs/run.py --triton 127.0.0.1:8001 --texts medium -o perf closed_1 closed_16 rate_10

Without names of runs all of runs/*.args are done. README.md beside this file says what each column means, and where
perf_analyzer comes from.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LENGTHS = ("short", "medium", "long")
SAMPLE_RATE = 24_000
LIMIT_S = 900  # of one run; perf_analyzer has been seen to hang
PCM = re.compile(rb'"PCM":(?:\[([^\]]*)\]|"")')  # an empty tensor is a string
HEADER = ("run", "texts", "requests", "ended", "chunks", "first chunk ms", "last chunk ms", "gap ms", "requests/s",
          "audio s/s", "perf_analyzer's latency ms")  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One request of an export. Times in seconds."""

    sent_s: float
    arrived_s: tuple[float, ...]  # of each response
    samples: int
    ends: int  # responses that say LAST


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; the exit code."""
    options = _parser().parse_args(arguments)
    names = options.runs or sorted((path.stem for path in (HERE / "runs").glob("*.args")), key=_by_kind_and_number)
    program = shlex.split(options.perf_analyzer)
    options.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for length in options.texts:
        _measure(program, options, "warm_up", ["--concurrency-range", "4", "--request-count", "16"], length)
        for name in names:
            print(f"{name}, {length} texts ...", file=sys.stderr, flush=True)
            rows.append(_measure(program, options, name, arguments_of(HERE / "runs" / f"{name}.args"), length))
            table = markdown(rows)  # after each run: a later one may fail
            (options.output / "table.md").write_text(table, encoding="utf-8")
    print(table)
    return 0


def arguments_of(path: Path) -> list[str]:
    """perf_analyzer's arguments in a file of runs/."""
    return shlex.split(path.read_text(encoding="utf-8"), comments=True)


def read_export(data: bytes) -> list[Request]:
    """The requests of a --profile-export-file. The sound in it is counted, not read: it's most of the file."""
    short = PCM.sub(lambda found: b'"PCM":%d' % (found[1].count(b",") + 1 if found[1] else 0), data)
    (experiment,) = json.loads(short)["experiments"]
    return [
        Request(
            sent_s=request["timestamp"] / 1e9,
            arrived_s=tuple(arrived / 1e9 for arrived in request["response_timestamps"]),
            samples=sum(output.get("PCM", 0) for output in request["response_outputs"]),
            ends=sum(bool(output.get("LAST")) for output in request["response_outputs"]),
        )
        for request in experiment["requests"]
    ]


def row(name: str, length: str, requests: Sequence[Request], latency_ms: Sequence[float]) -> list[str]:
    """The table's cells for one run; `latency_ms` is perf_analyzer's own p50, p95, p99."""
    first = [request.arrived_s[0] - request.sent_s for request in requests]
    last = [request.arrived_s[-1] - request.sent_s for request in requests]
    gaps = [b - a for request in requests for a, b in zip(request.arrived_s, request.arrived_s[1:], strict=False)]
    span_s = max(request.arrived_s[-1] for request in requests) - min(request.sent_s for request in requests)
    return [
        name,
        length,
        str(len(requests)),
        str(sum(request.ends for request in requests)),
        f"{sum(len(request.arrived_s) for request in requests) / len(requests):.1f}",
        _spread(first),
        _spread(last),
        _spread(gaps) if gaps else "-",
        f"{len(requests) / span_s:.2f}",
        f"{sum(request.samples for request in requests) / SAMPLE_RATE / span_s:.1f}",
        " / ".join(f"{value:.1f}" for value in latency_ms),
    ]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The table."""
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _measure(
    program: Sequence[str], options: argparse.Namespace, name: str, arguments: Sequence[str], length: str
) -> list[str]:
    """Run perf_analyzer once. Its report stays in the output folder, the export with the sound in it doesn't."""
    report = options.output / f"{name}_{length}"
    export = report.with_suffix(".export.json")
    command = [
        *program, "-m", "tts", "-u", options.triton, "-i", "grpc", "--streaming",
        "--input-data", str(HERE / "inputs" / f"{length}.json"), *arguments,
        "-f", str(report.with_suffix(".csv")), "--profile-export-file", str(export),
    ]  # fmt: skip
    export.unlink(missing_ok=True)  # it refuses to write over one
    with report.with_suffix(".log").open("wb") as log:
        finished = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
    if finished.returncode != 0:
        said = report.with_suffix(".log").read_text(encoding="utf-8", errors="replace").splitlines()[-10:]
        sys.exit("\n".join([f"perf_analyzer failed on {name} with {length} texts ({finished.returncode}):", *said]))
    requests = read_export(export.read_bytes())
    if not options.keep:
        export.unlink()
    return row(name, length, requests, _own_latency_ms(report.with_suffix(".csv")))


def _own_latency_ms(path: Path) -> list[float]:
    """p50, p95 and p99 of perf_analyzer's CSV, which has one line of figures."""
    names, values, *_ = (line.split(",") for line in path.read_text(encoding="utf-8").splitlines())
    figures = dict(zip(names, values, strict=True))
    return [float(figures[f"p{percent} latency"]) / 1000 for percent in (50, 95, 99)]


def _spread(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    ranks = (max(0, math.ceil(percent / 100 * len(ordered)) - 1) for percent in (50, 95, 99))
    return " / ".join(f"{1000 * ordered[rank]:.1f}" for rank in ranks)


def _by_kind_and_number(name: str) -> tuple[str, float]:
    kind, _, number = name.rpartition("_")
    return kind, float(number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run perf_analyzer against the ensemble tts and write a table.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="files of runs/, without .args (all)")
    parser.add_argument("--triton", default="127.0.0.1:8001", metavar="HOST:PORT", help="its gRPC (%(default)s)")
    parser.add_argument("--texts", nargs="+", choices=LENGTHS, default=["medium"], help="one or more (medium)")
    parser.add_argument("--perf-analyzer", default="perf_analyzer", metavar="COMMAND", help="how to start it")
    parser.add_argument("--keep", action="store_true", help="keep the exports, which hold all sound as numbers")
    parser.add_argument("-o", "--output", type=Path, default=Path("perf"), metavar="DIR", help="for table.md (perf)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
