"""Laws of the runs for perf_analyzer. The program itself needs a newer glibc than CI has, so an export is kept here.

tests/data/perf_analyzer was made by perf_analyzer 2.60 on the small checkpoint: three requests of five chunks and an
end, --concurrency-range 2; the sound of each response was then cut to 24 samples.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine_lib import wire
from perf_analyzer_configs import make_inputs, run
from tests.serving import ROOT

DATA = ROOT / "tests" / "data" / "perf_analyzer"
RUNS = sorted((ROOT / "perf_analyzer_configs" / "runs").glob("*.args"))
STAND_IN = """#!/usr/bin/env python3
import shutil, sys
arguments = sys.argv[1:]
print(*arguments)
shutil.copy({data!r} + "/report.csv", arguments[arguments.index("-f") + 1])
shutil.copy({data!r} + "/export.json", arguments[arguments.index("--profile-export-file") + 1])
"""


def test_case_56_an_export_tells_first_and_last_chunk_and_the_ends_of_each_request() -> None:
    requests = run.read_export((DATA / "export.json").read_bytes())
    raw = json.loads((DATA / "export.json").read_text(encoding="utf-8"))["experiments"][0]["requests"]
    assert [len(request.arrived_s) for request in requests] == [6, 6, 6]
    assert [request.ends for request in requests] == [1, 1, 1]
    assert [request.samples for request in requests] == [5 * 24] * 3  # the end has none
    first = sorted((one["response_timestamps"][0] - one["timestamp"]) / 1e6 for one in raw)
    last = sorted((one["response_timestamps"][-1] - one["timestamp"]) / 1e6 for one in raw)
    cells = dict(zip(run.HEADER, run.row("closed_2", "short", requests, [1.0, 2.0, 3.0]), strict=True))
    assert cells["first chunk ms"] == f"{first[1]:.1f} / {first[2]:.1f} / {first[2]:.1f}"
    assert cells["last chunk ms"] == f"{last[1]:.1f} / {last[2]:.1f} / {last[2]:.1f}"
    assert (cells["requests"], cells["ended"], cells["chunks"]) == ("3", "3", "6.0")


def test_the_script_runs_what_it_is_told_and_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "perf_analyzer"
    program.write_text(STAND_IN.format(data=str(DATA)), encoding="utf-8")
    program.chmod(0o755)
    where = ["--triton", "127.0.0.1:1", "--perf-analyzer", str(program), "-o", str(tmp_path / "out")]
    assert run.main(["closed_4", "rate_10", "--texts", "short", "long", *where]) == 0
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert table.strip() == capsys.readouterr().out.strip()
    assert [line.split(" | ")[:3] for line in table.splitlines()[2:]] == [
        ["| closed_4", "short", "3"], ["| rate_10", "short", "3"],
        ["| closed_4", "long", "3"], ["| rate_10", "long", "3"],
    ]  # fmt: skip
    log = (tmp_path / "out" / "rate_10_long.log").read_text(encoding="utf-8")
    assert "--request-rate-range 10 --request-distribution poisson" in log
    assert "-u 127.0.0.1:1 -i grpc --streaming" in log
    assert not list((tmp_path / "out").glob("*.export.json"))


def test_a_run_that_fails_ends_the_script_with_what_was_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"failed on warm_up with medium texts \(1\)"):
        run.main(["--perf-analyzer", "false", "-o", str(tmp_path)])


def test_there_is_a_file_for_each_run() -> None:
    assert {path.stem for path in RUNS} == {
        *(f"closed_{count}" for count in (1, 4, 16, 32, 64)),
        *(f"rate_{rate}" for rate in (1, 10, 20, 60)),
    }


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_a_run_is_of_the_load_that_its_name_says(path: Path) -> None:
    kind, _, number = path.stem.partition("_")
    arguments = run.arguments_of(path)
    load = {"closed": "--concurrency-range", "rate": "--request-rate-range"}[kind]
    assert arguments[arguments.index(load) + 1] == number
    assert ("poisson" in arguments) == (kind == "rate")
    assert int(arguments[arguments.index("--request-count") + 1]) >= 4 * int(number)
    assert "--warmup-request-count" not in arguments  # perf_analyzer 2.60 hangs on it at a request rate


@pytest.mark.parametrize("length", run.LENGTHS)
def test_inputs_are_what_their_maker_makes_and_ask_for_as_much_speech_as_their_text_takes(length: str) -> None:
    written = (ROOT / "perf_analyzer_configs" / "inputs" / f"{length}.json").read_text(encoding="utf-8")
    assert written == make_inputs.file_of(make_inputs.texts()[length])
    for entry in json.loads(written)["data"]:
        (text,), (options,) = entry["TEXT"], entry["OPTIONS"]
        assert wire.check_text(text) == text
        asked = wire.parse_options(options)
        assert asked.ignore_eos
        assert asked.max_new_tokens == make_inputs.frames_of(text) + 1
