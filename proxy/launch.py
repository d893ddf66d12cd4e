"""Start a Triton server and the proxy, watch both, and stop both. What `serve` does once its options are read.

    serve (this process)          reserves the ports, owns the shared-memory prefix, waits
    ├── tritonserver              its own process group, with its stubs
    └── python -m proxy.web       its own process group; the socket it listens on comes from here

One ends, the other is stopped, and the exit code says which it was. If this process is killed, the kernel kills both
(tether.py), Triton's stubs notice, and the next `serve` removes what is left in /dev/shm.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from proxy import ports, shared_memory, triton_server
from proxy.child import Child, adopt_orphans
from proxy.triton_log import TritonLog

PROBE_INTERVAL_S = 0.25
STOP_GRACE_S = 10.0  # beyond the time a process was told it may take to stop; then it is killed
BACKLOG = 2048  # connections


class Exit(enum.IntEnum):
    """Exit codes of `serve`."""

    STOPPED = 0  # as asked, by Ctrl-C or SIGTERM
    START_FAILED = 1
    USAGE = 2  # a wrong option, setting or profile, or a port that is taken
    TRITON_DIED = 3
    PROXY_DIED = 4


@dataclass(frozen=True)
class Plan:
    """What to start and where to listen. `environment` is what both processes get."""

    environment: Mapping[str, str]
    host: str
    port: int  # 0: any free one
    triton_host: str
    triton_ports: tuple[int, int, int]  # gRPC, metrics, HTTP; 0: any free one
    triton_urls: tuple[str, ...]  # Triton servers elsewhere; with any, none is started
    tritonserver: str | None
    model_repository: str | None
    drain_timeout_s: float  # how long running responses may go on after a stop was asked for
    verbose: bool
    announce: Path | None  # gets addresses and process ids as JSON once ready


def run(plan: Plan, say: Callable[[str], None]) -> Exit:
    """Serve until told to stop or one of the two ends. Raises ConfigurationError when there's nothing to start."""
    adopt_orphans()
    return asyncio.run(_Service(plan, say).run())


class _Service:
    """One run of `serve`."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._log = TritonLog(say, verbose=plan.verbose)
        self._ready = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> Exit:
        self._listen_for_signals()
        async with contextlib.AsyncExitStack() as stack:
            listening = stack.enter_context(ports.reserve(self._plan.host, self._plan.port, "the proxy"))
            listening.listen(BACKLOG)  # from here on the port is ours; the proxy accepts within a second
            url = _url(listening)
            triton: Child | None = None
            facts: dict[str, str] = {}
            if not self._plan.triton_urls:
                triton, facts = await self._start_triton(stack)
            proxy = await self._start_proxy(stack, listening, facts)
            outcome = await self._watch(triton, proxy, url, facts)
            if outcome is Exit.STOPPED:
                self._say(
                    f"Stopping. Running responses have {self._plan.drain_timeout_s:g} s; Ctrl-C again stops at once."
                )
            return outcome

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def interrupted() -> None:
            if self._stop.is_set():
                self._hurry.set()
            self._stop.set()

        loop.add_signal_handler(signal.SIGINT, interrupted)
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)  # `uv run` may hand on a group's signal a second time

    async def _start_triton(self, stack: contextlib.AsyncExitStack) -> tuple[Child, dict[str, str]]:
        """A Triton server, and what to tell of it. `stack` ends it and removes its regions."""
        plan = self._plan
        repository = triton_server.find_models(plan.model_repository)
        shared_memory.check_room(triton_server.count_python_models(repository))
        regions = stack.enter_context(shared_memory.Regions())
        triton = triton_server.find(plan.tritonserver, stack.enter_context(_scratch(regions.prefix)))
        purposes = ("Triton's gRPC", "Triton's metrics", "Triton's HTTP")
        grpc, metrics, http = (
            stack.enter_context(ports.reserve(plan.triton_host, port, purpose))
            for port, purpose in zip(plan.triton_ports, purposes, strict=True)
        )
        command = triton.command(
            repository,
            host=plan.triton_host,
            grpc=ports.number(grpc),
            metrics=ports.number(metrics),
            http=ports.number(http),
            region_prefix=regions.prefix,
        )
        self._say(f"Starting Triton ({triton.origin}).")
        child = await Child.start("Triton", command, triton.environment(plan.environment), on_line=self._log.take)
        stack.push_async_callback(self._end, child, triton_server.EXIT_TIMEOUT_S + STOP_GRACE_S)
        facts = {
            "triton_grpc": _url(grpc).removeprefix("http://"),
            "triton_metrics": f"{_url(metrics)}/metrics",
            "triton_http": _url(http),
            "shared_memory": f"{shared_memory.DIRECTORY}/{regions.prefix}*",
        }
        return child, facts

    async def _start_proxy(
        self, stack: contextlib.AsyncExitStack, listening: socket.socket, facts: Mapping[str, str]
    ) -> Child:
        """The proxy's process on `listening`, which is closed here. `stack` ends it."""
        plan = self._plan
        triton_urls = plan.triton_urls or (facts["triton_grpc"],)
        environment = {**plan.environment, "QWEN3_TTS_TRITON_URL": ",".join(triton_urls)}
        descriptor = listening.fileno()
        command = [sys.executable, "-P", "-m", "proxy.web", str(descriptor), str(plan.drain_timeout_s)]
        child = await Child.start("The proxy", command, environment, pass_fds=[descriptor])
        listening.close()
        stack.push_async_callback(self._end, child, plan.drain_timeout_s + STOP_GRACE_S)
        return child

    async def _watch(self, triton: Child | None, proxy: Child, url: str, facts: Mapping[str, str]) -> Exit:
        """Wait until a signal comes or a process ends. A Triton that died is what a restart would begin with."""
        stop = asyncio.create_task(self._stop.wait())
        ready = asyncio.create_task(self._until_ready(url, tell_reasons=triton is None))
        waiting: set[asyncio.Task[int] | asyncio.Task[bool] | asyncio.Task[None]] = {stop, ready, proxy.exited}
        if triton:
            waiting.add(triton.exited)
        try:
            while True:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if stop in done:
                    return Exit.STOPPED
                if triton and triton.exited in done:
                    return self._died(triton, Exit.TRITON_DIED)
                if proxy.exited in done:
                    return self._died(proxy, Exit.PROXY_DIED)
                ready.result()
                self._announce(url, facts, triton, proxy)
        finally:
            stop.cancel()
            ready.cancel()

    async def _until_ready(self, url: str, *, tell_reasons: bool) -> None:
        """Ask the proxy until one real utterance went through."""
        told = ""
        async with httpx.AsyncClient(base_url=url, timeout=10, trust_env=False) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):  # not up yet; its end is noticed elsewhere
                    answer = await client.get("/ready")
                    if answer.status_code == httpx.codes.OK:
                        return
                    reason = str(answer.json()["reason"])
                    if tell_reasons and reason != told:
                        self._say(f"Not ready: {reason}")
                        told = reason
                await asyncio.sleep(PROBE_INTERVAL_S)

    def _announce(self, url: str, facts: Mapping[str, str], triton: Child | None, proxy: Child) -> None:
        self._ready = True
        body = json.dumps({"model": "tts-1", "input": "Hello!", "response_format": "wav"})
        for name, fact in facts.items():
            self._say(f"{name.replace('_', ' ').capitalize()}: {fact}")
        key = (
            " -H 'Authorization: Bearer '$QWEN3_TTS_API_KEY" if self._plan.environment.get("QWEN3_TTS_API_KEY") else ""
        )
        self._say(
            f"Ready: {url}\nTry:  curl {url}/v1/audio/speech{key} -H 'Content-Type: application/json' "
            f"-d '{body}' -o hello.wav"
        )
        if self._plan.announce:
            pids = {"serve": os.getpid(), "proxy": proxy.pid} | ({"triton": triton.pid} if triton else {})
            partial = self._plan.announce.with_name(f"{self._plan.announce.name}.partial")
            partial.write_text(json.dumps({"url": url, **facts, "pids": pids}), encoding="utf-8")
            partial.replace(self._plan.announce)  # whoever waits for the file finds all of it

    def _died(self, child: Child, code: Exit) -> Exit:
        status = child.exited.result()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with code {status}"
        if code is Exit.TRITON_DIED and not self._log.explained and not self._plan.verbose:
            self._say("\n  ".join(["Triton's last lines:", *self._log.recent]))
        self._say(f"{child.name} {how}{'' if self._ready else ' while starting'}.")
        return code if self._ready else Exit.START_FAILED

    async def _end(self, child: Child, grace_s: float) -> None:
        """End a process in order, at once if a second Ctrl-C came; before it was ready there's nothing to wait for."""
        if not self._ready:
            grace_s = 0
        ending = asyncio.create_task(child.end(grace_s))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({ending, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not ending.done():
            await child.kill()
        if not await ending and self._ready:
            self._say(f"{child.name} was killed: it didn't stop in time.")


@contextlib.contextmanager
def _scratch(prefix: str) -> Iterator[Path]:
    """A temporary folder of that prefix; those of servers that were killed are removed first."""
    parent = Path(tempfile.gettempdir())
    for abandoned in shared_memory.remove_abandoned():
        shutil.rmtree(parent / f"{abandoned}scratch", ignore_errors=True)  # it had none if it never came so far
    folder = parent / f"{prefix}scratch"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _url(bound: socket.socket) -> str:
    """The address of a bound socket, as a client on this machine can use it."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
