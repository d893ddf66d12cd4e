"""Talker and codec at one GPU, each in a process of its own as with Triton, and what happens when one isn't there."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_lib import turns
from engine_lib.turns import CodecTurns, TalkerTurns

OTHER_CODEC = """
import sys
from pathlib import Path
from engine_lib.turns import CodecTurns
codec = CodecTurns(Path(sys.argv[1]))
for line in sys.stdin:
    codec.take() if line.startswith("take") else codec.give_back(int(line))
    print("done", flush=True)
"""
LONG_S = 3600.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "turns"


@pytest.fixture
def talker(path: Path) -> Iterator[TalkerTurns]:
    side = TalkerTurns(path)
    yield side
    side.close()


@pytest.fixture
def codec(path: Path) -> Iterator[CodecTurns]:
    side = CodecTurns(path)
    yield side
    side.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that no machine is slow enough to reach."""
    for limit in ("FRAME_LIMIT_S", "DECODE_LIMIT_S", "FIRST_LIMIT_S"):
        monkeypatch.setattr(turns, limit, LONG_S)


def test_the_talker_waits_for_one_batch_of_a_codec_in_another_process(
    talker: TalkerTurns, path: Path, patient: None
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_CODEC, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin
        assert other.stdout

        def tell(line: str) -> None:
            print(line, file=other.stdin, flush=True)
            assert other.stdout.readline() == "done\n"

        assert not talker.are_the_codecs()
        tell("take")
        assert talker.are_the_codecs()
        tell("0")
        assert not talker.are_the_codecs()
        tell("take")
        assert talker.are_the_codecs()
        tell("0")
        tell("take")  # at once the next one
        assert not talker.are_the_codecs(), "one batch is a turn"
        other.stdin.close()


def test_the_codec_waits_until_no_frame_is_under_way(talker: TalkerTurns, codec: CodecTurns, patient: None) -> None:
    talker.begin()
    taking = threading.Thread(target=codec.take)
    taking.start()
    while not talker.are_the_codecs():
        pass
    assert taking.is_alive()
    talker.end()
    taking.join(120)
    assert not taking.is_alive()


def test_the_talker_waits_until_every_first_chunk_that_it_sent_is_decoded(
    talker: TalkerTurns, codec: CodecTurns, patient: None
) -> None:
    talker.first_chunk()
    talker.first_chunk()
    assert talker.are_the_codecs()
    codec.take()
    codec.give_back(1)
    assert talker.are_the_codecs()
    codec.take()
    codec.give_back(1)
    assert not talker.are_the_codecs()
    codec.give_back(5)  # of streams whose turns had a limit
    talker.first_chunk()
    assert talker.are_the_codecs()


@pytest.mark.parametrize("codec_is_there", [True, False])
def test_a_codec_that_does_nothing_is_waited_for_no_longer_than_the_limits(
    codec_is_there: bool, talker: TalkerTurns, path: Path
) -> None:
    if codec_is_there:
        CodecTurns(path).take()  # and it never gives back
    talker.first_chunk()
    talker.wait()
    assert not talker.are_the_codecs()


def test_a_talker_that_died_in_a_frame_is_waited_for_no_longer_than_the_limit(path: Path) -> None:
    TalkerTurns(path).begin()
    CodecTurns(path).take()


def test_a_new_start_forgets_what_the_last_process_left(path: Path) -> None:
    TalkerTurns(path).begin()
    CodecTurns(path)._words[turns.DECODE] = 2**63
    talker, codec = TalkerTurns(path), CodecTurns(path)
    assert not talker.are_the_codecs()
    assert codec._words[turns.FRAME] == 0


def test_the_file_is_for_its_owner_alone_and_goes_with_the_server(path: Path) -> None:
    talker, codec = TalkerTurns(path), CodecTurns(path)
    assert path.stat().st_mode & 0o777 == 0o600
    talker.close()
    codec.close()
    assert not path.exists()


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"):
        TalkerTurns(path)
    assert victim.read_bytes() == b"mine"
