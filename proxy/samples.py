"""Files of sound to samples for the engine, each decoded by a confined process (sample_decoder.py)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from engine_lib.errors import InvalidRequest, Overloaded
from engine_lib.wire import MAX_SAMPLE_S, SAMPLE_RATE, sample_problem
from proxy.errors import BodyTooLarge

log = logging.getLogger(__name__)

LIMIT_S = 20.0  # for one file; a busy machine included
AT_ONCE, MAX_WAITING = 2, 16  # processes; files that wait for one
UNREADABLE = 10
COMPLAINTS = {  # by exit code, see sample_decoder.py
    UNREADABLE: "isn't a file of sound that can be read",
    11: f"lasts longer than {MAX_SAMPLE_S} s",
    12: "holds no sound",
    13: "is cut off",
}


class Decoder:
    """Decodes files, a few at once."""

    def __init__(self) -> None:
        # Threads that wait for a process: uvloop's own way to start one is a fork, which gRPC's threads forbid.
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="decode-sample")
        self._waiting = 0

    async def decode(self, data: bytes, param: str) -> npt.NDArray[np.float32]:
        """A file's sound as float32 [samples], mono at SAMPLE_RATE.

        Raises InvalidRequest that names `param` when no voice can be taken from it, or Overloaded.
        """
        if not data:
            raise InvalidRequest(f"'{param}' is empty.", param=param)
        if self._waiting >= MAX_WAITING:
            raise Overloaded("Too many samples are waiting to be read; try again in a moment.")
        self._waiting += 1
        try:
            code, samples = await asyncio.get_running_loop().run_in_executor(self._threads, _decode, data)
        finally:
            self._waiting -= 1
        if code:
            if code not in COMPLAINTS:
                log.warning("the decoder of a sample ended with code %d", code)
            raise InvalidRequest(f"'{param}' {COMPLAINTS.get(code, COMPLAINTS[UNREADABLE])}.", param=param)
        if problem := sample_problem(samples):
            raise InvalidRequest(f"'{param}' {problem}.", param=param)
        return samples


def _decode(data: bytes) -> tuple[int, npt.NDArray[np.float32]]:
    """Exit code and samples of a decoding process."""
    command = [sys.executable, "-P", "-m", "proxy.sample_decoder", str(SAMPLE_RATE), str(MAX_SAMPLE_S)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # each of its threads would take memory
    try:
        done = subprocess.run(
            command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        log.warning("a sample took longer than %g s to decode", LIMIT_S)
        return UNREADABLE, np.zeros(0, np.float32)
    if done.returncode:
        return done.returncode, np.zeros(0, np.float32)
    return 0, np.frombuffer(done.stdout, "<f4")


def from_text(text: str, most: int, param: str) -> bytes:
    """The file in a data URL, or in base64 alone. Raises InvalidRequest, or BodyTooLarge for more than `most` bytes."""
    encoded = text
    if text[:5].lower() == "data:":
        head, comma, encoded = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise InvalidRequest(f"'{param}' must be a data URL in base64.", param=param)
    if len(encoded) > (most + 2) // 3 * 4 + 4:
        raise BodyTooLarge(f"'{param}' is over the limit of {most} bytes.", param=param)
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"'{param}' must be a file in base64, or a data URL.", param=param) from None
    if len(data) > most:
        raise BodyTooLarge(f"'{param}' is over the limit of {most} bytes.", param=param)
    return data
