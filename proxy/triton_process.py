"""Keep one Triton server running: start it, notice when it or one of its models dies, start it again.

Triton itself doesn't notice a dead model process: it goes on calling the model ready. So the stubs are watched here, in
/proc, and a server that lost one is as good as dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine_lib.profile import TURNS_FILE
from proxy import ports, shared_memory, triton_server
from proxy.child import Child
from proxy.triton_log import TritonLog

WATCH_INTERVAL_S = 0.5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # before it is started again; doubled each time
STEADY_S = 60.0  # a server that was ready for so long starts again without a long pause
STUB = "triton_python_b"  # /proc shortens names to 15 characters


@dataclass(frozen=True)
class TritonPlan:
    """Which server over which models, and where it listens."""

    environment: Mapping[str, str]
    host: str
    ports: tuple[int, int, int]  # gRPC, metrics, HTTP; 0: any free one
    program: str | None
    repository: str | None
    restart: bool
    verbose: bool


class Backoff:
    """How long to wait before each start again."""

    def __init__(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def pause_s(self, lasted_s: float) -> float:
        """The pause after a server that was ready for `lasted_s`."""
        pause_s = FIRST_PAUSE_S if lasted_s > STEADY_S else self._next_s
        self._next_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s


class TritonProcess:
    """A Triton server on ports and a shared-memory prefix that stay the same however often it's started."""

    def __init__(self, plan: TritonPlan, say: Callable[[str], None], stack: contextlib.ExitStack) -> None:
        """Take what it needs; `stack` gives it back. Raises ConfigurationError when it could not be started."""
        self.restarts = plan.restart
        self._say = say
        self._log = TritonLog(say, verbose=plan.verbose)
        self._verbose = plan.verbose
        repository = triton_server.find_models(plan.repository)
        self._models = triton_server.count_python_models(repository)
        shared_memory.check_room(self._models)
        self._regions = stack.enter_context(shared_memory.Regions())
        triton = triton_server.find(plan.program, stack.enter_context(_scratch(self._regions.prefix)))
        purposes = ("Triton's gRPC", "Triton's metrics", "Triton's HTTP")
        grpc, metrics, http = (
            stack.enter_context(ports.reserve(plan.host, port, purpose))
            for port, purpose in zip(plan.ports, purposes, strict=True)
        )
        self._command = triton.command(
            repository,
            host=plan.host,
            grpc=ports.number(grpc),
            metrics=ports.number(metrics),
            http=ports.number(http),
            region_prefix=self._regions.prefix,
        )
        turns = {TURNS_FILE: f"{shared_memory.DIRECTORY}/{self._regions.prefix}turns"}
        self._environment = triton.environment(plan.environment) | turns
        self._origin = triton.origin
        self._backoff = Backoff()
        self._ready_at: float | None = None
        self._child: Child | None = None
        self.facts = {
            "triton_grpc": ports.url(grpc).removeprefix("http://"),
            "triton_metrics": f"{ports.url(metrics)}/metrics",
            "triton_http": ports.url(http),
            "shared_memory": f"{shared_memory.DIRECTORY}/{self._regions.prefix}*",
        }

    @property
    def pid(self) -> int:
        """Of the server that runs now."""
        return self._running().pid

    async def start(self) -> None:
        """Start it."""
        self._say(f"Starting Triton ({self._origin}).")
        self._child = await Child.start("Triton", self._command, self._environment, on_line=self._log.take)

    def is_ready(self) -> None:
        """Note that an utterance came through."""
        self._ready_at = time.monotonic()

    async def died(self) -> str:
        """Wait until it, or a model's process that it had, is gone; how that went, in words."""
        child = self._running()
        while not child.exited.done():
            await asyncio.wait({child.exited}, timeout=WATCH_INTERVAL_S)
            # While it loads, Triton starts and ends stubs of its own.
            is_watched = self._ready_at is not None and not child.exited.done()
            if is_watched and _living_stubs(child.pid) < self._models:
                await asyncio.wait({child.exited}, timeout=WATCH_INTERVAL_S)  # a Triton that died takes them along
                if not child.exited.done():
                    return "A process of one of Triton's models died."
        if not self._log.explained and not self._verbose:
            self._say("\n  ".join(["Triton's last lines:", *self._log.recent]))
        return child.how_it_ended(while_starting=self._ready_at is None)

    @property
    def was_killed(self) -> bool:
        """Whether a signal has ended it."""
        return self._running().was_killed

    async def start_again(self) -> None:
        """Remove what is left of it, and start it after a pause that grows while it doesn't last."""
        await self.kill()
        self._regions.clear()
        pause_s = self._backoff.pause_s(0.0 if self._ready_at is None else time.monotonic() - self._ready_at)
        self._ready_at = None
        self._say(f"Starting it again in {pause_s:g} s.")
        await asyncio.sleep(pause_s)
        await self.start()

    async def end(self, grace_s: float) -> bool:
        """Stop it in order. False if it had to be killed."""
        return await self._running().end(triton_server.EXIT_TIMEOUT_S + grace_s if grace_s else 0)

    async def kill(self) -> None:
        """Stop it at once, its models too."""
        await self._running().kill()

    def _running(self) -> Child:
        assert self._child is not None, "not started"
        return self._child


def _living_stubs(group: int) -> int:
    """How many processes of Triton's models live in a process group."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while we looked
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            state, _, of_group = rest.split()[:3]
            count += name == STUB and state != "Z" and int(of_group) == group
    return count


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
