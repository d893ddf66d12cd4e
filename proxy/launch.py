"""Start a Triton server and the proxy, watch both, and stop both. What `serve` does once its options are read.

    serve (this process)          reserves the ports, owns the shared-memory prefix, waits
    ├── tritonserver              its own process group, with its stubs
    └── python -m proxy.web       its own process group; the socket it listens on comes from here

When the proxy ends, Triton is stopped; when Triton or one of its models dies, it is started again, or both are stopped
(--on-triton-death). The exit code says which it was. If this process is killed, both groups are killed too (tether.py),
and the next `serve` removes what is left in /dev/shm.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from proxy import ports
from proxy.child import Child, adopt_orphans
from proxy.triton_process import TritonPlan, TritonProcess

PROBE_INTERVAL_S = 0.25
TRITON_GRACE_S = 2.0  # beyond its own exit timeout, which it runs into whenever a call was cancelled midway
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
    triton: TritonPlan | None  # the server to start; None: those at triton_urls serve
    triton_urls: tuple[str, ...]
    drain_timeout_s: float  # how long running responses may go on after a stop was asked for
    announce: Path | None  # holds addresses and process ids as JSON, and is there exactly while they can be used


def run(plan: Plan, say: Callable[[str], None]) -> Exit:
    """Serve until told to stop or one of the two ends. Raises ConfigurationError when there's nothing to start."""
    adopt_orphans()
    return asyncio.run(_Service(plan, say).run())


class _Service:
    """One run of `serve`."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._ready = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> Exit:
        self._listen_for_signals()
        self._withdraw()  # what one that was killed has left
        async with contextlib.AsyncExitStack() as stack:
            listening = stack.enter_context(ports.reserve(self._plan.host, self._plan.port, "the proxy"))
            listening.listen(BACKLOG)  # from here on the port is ours; the proxy accepts within a second
            url = ports.url(listening)
            triton: TritonProcess | None = None
            if self._plan.triton is not None:
                triton = TritonProcess(self._plan.triton, self._say, stack.enter_context(contextlib.ExitStack()))
                await triton.start()
                stack.push_async_callback(self._end, "Triton", triton, TRITON_GRACE_S)
            proxy = await self._start_proxy(stack, listening, triton)
            stack.callback(self._withdraw)
            outcome = await self._watch(triton, proxy, url)
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

    async def _start_proxy(
        self, stack: contextlib.AsyncExitStack, listening: socket.socket, triton: TritonProcess | None
    ) -> Child:
        """The proxy's process on `listening`, which is closed here. `stack` ends it."""
        plan = self._plan
        triton_urls = plan.triton_urls if triton is None else (triton.facts["triton_grpc"],)
        environment = {**plan.environment, "QWEN3_TTS_TRITON_URL": ",".join(triton_urls)}
        descriptor = listening.fileno()
        command = [sys.executable, "-P", "-m", "proxy.web", str(descriptor), str(plan.drain_timeout_s)]
        child = await Child.start("The proxy", command, environment, pass_fds=[descriptor])
        listening.close()
        stack.push_async_callback(self._end, child.name, child, plan.drain_timeout_s + STOP_GRACE_S)
        return child

    async def _watch(self, triton: TritonProcess | None, proxy: Child, url: str) -> Exit:
        """Wait until a signal comes or a process ends for good."""
        async with asyncio.TaskGroup() as tasks:
            stop = tasks.create_task(self._stop.wait())
            ready = tasks.create_task(self._until_ready(url, tell_reasons=triton is None))
            keep = tasks.create_task(self._keep(triton, proxy, url, ready)) if triton else None
            ready.add_done_callback(lambda task: None if task.cancelled() else self._announce(url, triton, proxy))
            running = {task for task in (stop, keep) if task} | {proxy.exited}
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            outcome = self._outcome(stop, keep, proxy)
            for task in (stop, ready, keep):
                if task:
                    task.cancel()
        return outcome

    def _outcome(self, stop: asyncio.Task[bool], keep: asyncio.Task[Exit] | None, proxy: Child) -> Exit:
        if stop.done():
            return Exit.STOPPED
        if keep and keep.done():
            return keep.result()
        self._say(proxy.how_it_ended(while_starting=not self._ready))
        return Exit.PROXY_DIED if self._ready else Exit.START_FAILED

    async def _keep(self, triton: TritonProcess, proxy: Child, url: str, first: asyncio.Task[None]) -> Exit:
        """Start Triton again whenever it dies, unless it is to be left, or would die again; the exit code then.

        A start that ended in an error would end so again. One that was killed gets a second try: Triton's own
        interprocess locks have been seen to abort it while it started.
        """
        tried_twice = False
        while True:
            self._say(await triton.died())
            self._withdraw()
            if not self._ready:
                if tried_twice or not (triton.was_killed and triton.restarts):
                    first.cancel()
                    return Exit.START_FAILED
                tried_twice = True
                await triton.start_again()
                continue
            if not triton.restarts:
                return Exit.TRITON_DIED
            await triton.start_again()
            died = asyncio.create_task(triton.died())
            ready = asyncio.create_task(self._until_ready(url, tell_reasons=False))
            try:
                await asyncio.wait({died, ready}, return_when=asyncio.FIRST_COMPLETED)
                if ready.done():
                    self._announce(url, triton, proxy)
            finally:
                died.cancel()
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

    def _announce(self, url: str, triton: TritonProcess | None, proxy: Child) -> None:
        """Tell people, and whoever waits for the file, that it can be used; after a restart in few words."""
        facts = triton.facts if triton else {}
        if triton:
            triton.is_ready()
        if self._ready:
            self._say("Ready again.")
        else:
            self._ready = True
            self._introduce(url, facts)
        if self._plan.announce:
            pids = {"serve": os.getpid(), "proxy": proxy.pid} | ({"triton": triton.pid} if triton else {})
            partial = self._plan.announce.with_name(f"{self._plan.announce.name}.partial")
            partial.write_text(json.dumps({"url": url, **facts, "pids": pids}), encoding="utf-8")
            partial.replace(self._plan.announce)  # whoever waits for the file finds all of it

    def _withdraw(self) -> None:
        """Let nobody find the file who would come for nothing."""
        if self._plan.announce:
            self._plan.announce.unlink(missing_ok=True)

    def _introduce(self, url: str, facts: Mapping[str, str]) -> None:
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

    async def _end(self, name: str, process: Child | TritonProcess, grace_s: float) -> None:
        """End a process in order, at once if a second Ctrl-C came; before it was ready there's nothing to wait for."""
        if not self._ready:
            grace_s = 0
        ending = asyncio.create_task(process.end(grace_s))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({ending, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not ending.done():
            await process.kill()
        in_time = await ending
        if not in_time and self._ready and isinstance(process, Child):  # Triton often isn't, and nothing is lost then
            self._say(f"{name} was killed: it didn't stop in time.")
