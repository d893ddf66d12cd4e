"""Run the real `serve` for a test, and make sure that nothing of it is left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn

ROOT = Path(__file__).parent.parent
CHECKPOINT = ROOT / "tests" / "data" / "checkpoint_custom_voice"
LIMIT_S = 180.0  # when a test gives up on what hangs; how long a thing may take is another matter
MARK = "QWEN3_TTS_TEST_MARK"

# A shell lets what it starts in the background ignore Ctrl-C, and a server heeds that; those of tests are to hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclasses.dataclass
class Serving:
    """One `serve`, from its start on; addresses and pids are known once it is ready."""

    process: subprocess.Popen[bytes]
    mark: str  # in the environment of every process that descends from it
    announced: Path  # there while it can be used
    printed: Path
    _announcement: dict[str, Any] = dataclasses.field(default_factory=dict, init=False)

    def wait_ready(self) -> None:
        wait_for(lambda: self.announced.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.output
        assert self.facts, self.output

    @property
    def output(self) -> str:
        return self.printed.read_text(encoding="utf-8")

    @property
    def facts(self) -> dict[str, Any]:
        """The latest announcement, also when it was withdrawn since."""
        with contextlib.suppress(FileNotFoundError):
            self._announcement = json.loads(self.announced.read_text(encoding="utf-8"))
        return self._announcement

    @property
    def url(self) -> str:
        """Of the proxy."""
        return self.facts["url"]

    @property
    def triton_grpc(self) -> str:
        """HOST:PORT."""
        return self.facts["triton_grpc"]

    def pid(self, name: str) -> int:
        """Of serve, triton or proxy."""
        return self.facts["pids"][name]

    def stubs(self) -> list[psutil.Process]:
        """The processes of Triton's Python models."""
        return [child for child in psutil.Process(self.pid("triton")).children() if "stub" in child.name()]

    def stub(self, model: str) -> psutil.Process:
        """The process of one model."""
        (found,) = [stub for stub in self.stubs() if f"/{model}/" in " ".join(stub.cmdline())]
        return found

    def regions(self) -> list[str]:
        """What it has in /dev/shm."""
        return glob.glob(self.facts["shared_memory"])

    async def stays_ready(self, over: asyncio.Event) -> None:
        """Ask all the time whether it is ready, and fail when it isn't, until `over`."""
        async with httpx.AsyncClient(base_url=self.url, timeout=LIMIT_S) as client:
            while not over.is_set():
                answer = await client.get("/ready")
                assert answer.status_code == 200, answer.text

    def counted(self, *series: str) -> dict[str, float]:
        """These series of Triton's page, read once so that they are of one moment; 0 where one isn't yet."""
        page = httpx.get(self.facts["triton_metrics"]).text
        found = {name: re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE) for name in series}
        return {name: float(match[1]) if match else 0.0 for name, match in found.items()}

    def lines_of(self, request_id: str) -> list[str]:
        """What the proxy has logged of one request, up to its own line, which comes after the last byte of the answer.

        For a log of text, not JSON.
        """

        def said() -> list[str]:
            return [line for line in self.output.splitlines(keepends=True) if request_id in line]

        # A line may be read before all of it is written.
        wait_for(lambda: any(" INFO /v1/" in line and line.endswith("\n") for line in said()))
        return said()

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        self.process.send_signal(with_signal)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LIMIT_S)
        assert self.process.poll() is not None, self.output
        return self.process.returncode

    def left_processes(self) -> list[str]:
        """Processes that descend from it and still run."""
        return [line for process in psutil.process_iter() if (line := self._line_of(process)) is not None]

    def _line_of(self, process: psutil.Process) -> str | None:
        """The command of a process that descends from it, else None."""
        try:
            descends = process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
            return " ".join(process.cmdline()) if descends else None
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):  # it ended while we looked, or isn't ours
            return None


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; fails after LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"still not true after {LIMIT_S} s"
        time.sleep(0.02)


@contextlib.contextmanager
def in_this_process(configuration: uvicorn.Config) -> Iterator[str]:
    """The URL of an app of one's own, served by a thread."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(configuration)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        listening.close()


def stand_in_models(folder: Path) -> Path:
    """A model repository in `folder` of our config.pbtxt files, for other models to be put in."""
    repository = folder / "stand_in_models"
    for config in (ROOT / "model_repository").glob("*/config.pbtxt"):
        version = repository / config.parent.name / "1"
        version.mkdir(parents=True)
        shutil.copy(config, version.parent)
    return repository


@contextlib.contextmanager
def starting(folder: Path, *options: str, under: Sequence[str] = (), **environment: str) -> Iterator[Serving]:
    """`serve` with these options, on free ports unless they say otherwise; killed at the end if it still runs.

    `under` is a command that starts the one that follows it.
    """
    mark = uuid.uuid4().hex
    announced, printed = folder / f"{mark}.json", folder / f"{mark}.txt"
    defaults = ["--port", "0", "--triton-ports", "auto", "--announce", str(announced)]
    with printed.open("wb") as out:
        process = subprocess.Popen(
            [*under, sys.executable, "-P", "-m", "proxy", "serve", *defaults, *options],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, MARK: mark},
        )
    serving = Serving(process, mark, announced, printed)
    try:
        yield serving
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
            wait_for(lambda: not serving.left_processes())


@contextlib.contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[Serving]:
    """A ready `serve`; at the end it is stopped in order, and must leave neither process nor shared memory."""
    with starting(folder, *options, **environment) as server:
        server.wait_ready()
        yield server
        if server.process.poll() is None:
            assert server.stop() == 0, server.output
        assert server.left_processes() == []
        assert server.regions() == []
        assert not server.announced.exists()
