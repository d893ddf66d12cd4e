"""`bench` and `bench-report`: options in, files out."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine_lib.errors import ConfigurationError
from proxy.bench import report
from proxy.bench.load import Run, Sound, run
from proxy.bench.outcome import Outcome
from proxy.bench.plan import Request, plan
from proxy.bench.report import Results
from proxy.bench.summary import summarise
from proxy.bench.targets import Target
from proxy.bench.targets.grpc import GrpcTarget
from proxy.bench.targets.http import HttpTarget
from proxy.bench.targets.websocket import WebSocketTarget
from proxy.bench.texts import read_texts
from proxy.speak import Server

LATE_MS = 5.0  # a client whose p99 is later than this measures itself
NOT_KEPT = ("command", "api_key", "output", "no_plot", "label", "note")  # of the options, in the results


def bench(options: argparse.Namespace, server: Server, say: Callable[[str], None]) -> bool:
    """Run every level and write the results. False if nothing succeeded. Raises ConfigurationError."""
    texts = read_texts(options.texts)
    _check_output(options.output)
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    target_name, levels = asyncio.run(_levels(options, server, texts, say))
    document = {
        "schema": report.SCHEMA,
        "began": began,
        "label": options.label or target_name,
        "target": target_name,
        "notes": dict(options.note),
        "options": {name: value for name, value in vars(options).items() if name not in NOT_KEPT},
        "levels": levels,
    }
    results = Results.of(document)
    report.write(results, options.output.with_name(f"{options.output.name}.json"))
    _publish([results], options, say)
    return any(level["succeeded"] for level in levels)


def report_all(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """One table and one picture of many files. Raises ConfigurationError."""
    all_results = [Results.read(path) for path in options.results]
    _check_output(options.output)
    _publish(all_results, options, say)


def _publish(all_results: Sequence[Results], options: argparse.Namespace, say: Callable[[str], None]) -> None:
    table = report.markdown(all_results)
    options.output.with_name(f"{options.output.name}.md").write_text(table, encoding="utf-8")
    has_points = any(level.succeeded for results in all_results for level in results.levels)
    if has_points and not options.no_plot:
        from proxy.bench.plot import draw  # takes a second, and an installation that nothing else needs

        draw(all_results, options.output.with_name(f"{options.output.name}.png"))
    say(f"\n{table}")


async def _levels(
    options: argparse.Namespace, server: Server, texts: Sequence[str], say: Callable[[str], None]
) -> tuple[str, list[dict[str, Any]]]:
    """The target's name, and each level as JSON."""
    target = _target(options, server)
    sound = Sound(options.sample_rate, wav=options.format == "wav" and options.over == "http")
    levels = []
    try:
        for rate in options.rate:
            requests = plan(texts, rate, options.warmup, options.seconds, options.seed)
            seen = await _shown(target, requests, sound, options.timeout, rate)
            level = summarise(rate, seen)
            if level.lag_ms and level.lag_ms.p99 > LATE_MS:
                say(f"At {rate:g} requests/s this client was late itself: p99 {level.lag_ms.p99:.1f} ms.")
            levels.append(report.entry(level, seen))
    finally:
        await target.close()
    return target.name, levels


async def _shown(target: Target, requests: Sequence[Request], sound: Sound, limit_s: float, rate: float) -> Run:
    """A run with a progress bar."""
    failed = 0
    with tqdm(total=len(requests), desc=f"{rate:g} requests/s", unit="request", dynamic_ncols=True) as bar:

        def done(outcome: Outcome) -> None:
            nonlocal failed
            failed += outcome.failure is not None
            bar.set_postfix(failed=failed, refresh=False)
            bar.update()

        return await run(target, requests, sound, limit_s, done)


def _target(options: argparse.Namespace, server: Server) -> Target:
    fields: dict[str, Any] = dict(options.field)
    if options.voice:
        fields["voice"] = options.voice
    own_lengths = options.lengths == "model"
    if options.over == "grpc":
        return GrpcTarget(options.triton, fields, limit_s=options.timeout, own_lengths=own_lengths)
    if not server.url.startswith(("http://", "https://")):
        raise ConfigurationError(f"--url {server.url}: it must begin with http:// or https://.", param="url")
    if options.model:
        fields["model"] = options.model
    if options.over == "ws":
        return WebSocketTarget(server.url, fields, api_key=server.api_key, own_lengths=own_lengths)
    fields["response_format"] = options.format
    return HttpTarget(server.url, fields, api_key=server.api_key, own_lengths=own_lengths)


def _check_output(prefix: Path) -> None:
    """Find out before a long run that its results can be written."""
    if not prefix.name or not prefix.parent.is_dir():
        raise ConfigurationError(f"--output {prefix}: the folder isn't there.", param="output")
