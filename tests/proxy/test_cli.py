"""Laws of the command line: one line for an error, options over environment, and no torch."""

from __future__ import annotations

import os
import subprocess
import sys
import wave
from pathlib import Path

import pytest

from engine_lib.profile import EngineSettings, load_profile
from proxy import configuration
from proxy.cli import main
from tests.serving import LIMIT_S, ROOT, Serving


def test_config_prints_a_file_that_resolves_to_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--profile", "throughput", "--model", "some/model"]) == 0
    first = capsys.readouterr().out
    written = tmp_path / "engine.yaml"
    written.write_text(first, encoding="utf-8")
    assert main(["config", "--engine-config", str(written), "--model", "some/model"]) == 0
    assert capsys.readouterr().out == first
    assert f"# sha256: {load_profile('throughput').digest()}" in first
    assert "# model: some/model" in first


def test_an_option_beats_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("extends: ttfa\nmax_active: 3\n", encoding="utf-8")
    monkeypatch.setenv("QWEN3_TTS_ENGINE_CONFIG", str(tmp_path / "mine.yaml"))
    monkeypatch.setenv("QWEN3_TTS_MODEL", "from/environment")
    assert main(["config"]) == 0
    assert "max_active: 3\n" in (printed := capsys.readouterr().out)
    assert "# model: from/environment" in printed
    assert main(["config", "--profile", "balanced", "--model", "from/option"]) == 0
    assert "max_active: 64\n" in (printed := capsys.readouterr().out)
    assert "# model: from/option" in printed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--port", "70000"], "70000"),
        (["serve", "--triton-ports", "8001,8002"], "--triton-ports"),
        (["serve", "--drain-timeout", "nan"], "--drain-timeout"),
        (["serve", "--profile", "fastest"], "fastest"),
        (["serve", "--engine-config", "nowhere.yaml"], "nowhere.yaml"),
        (["serve", "--profile", "ttfa", "--engine-config", "x.yaml"], "--engine-config"),
        (["serve", "--tritonserver", "/nowhere/tritonserver", "--port", "0"], "/nowhere/tritonserver"),
        (["serve", "--model-repository", "/nowhere/models", "--port", "0"], "/nowhere/models"),
        (["serve", "--host", "not an address", "--port", "0"], "not an address"),
        (["serve", "--triton-url", "http://127.0.0.1:8001"], "http://127.0.0.1:8001"),
        (["serve", "--api-key", "ключ"], "api_key"),
        (["serve", "--unknown"], "--unknown"),
        (["config", "--device"], "--device"),
        (["speak"], "speak"),
        ([], "COMMAND"),
        (["say", "Hello.", "-o", "speech.txt"], "speech.txt"),
        (["say", "Hello.", "-o", "speech.mp3", "--play"], "--play"),
    ],
)
def test_a_wrong_option_is_named_in_one_line_with_code_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here(*arguments) == 2
    assert named in (printed := capsys.readouterr().err)
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "value"),
    [("QWEN3_TTS_PORT", "http"), ("QWEN3_TTS_LOCAL_FILES_ONLY", "maybe"), ("QWEN3_TTS_PROFILE", "fastest")],
)
def test_a_wrong_variable_is_named_in_one_line_with_code_2(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    assert here("serve") == 2
    assert value in (printed := capsys.readouterr().err)
    assert printed.count("\n") == 1


def test_the_program_itself_prints_one_line_and_ends_with_code_2() -> None:
    finished = command("serve", "--port", "70000")
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1


def test_the_command_line_and_the_proxy_import_no_torch() -> None:
    program = "import sys, proxy.cli, proxy.web; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_a_gpu_the_default_is_the_voice_in_the_package_and_with_one_the_large_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-0)'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert configuration.default_model("auto") == configuration.DEFAULT_MODEL
    assert configuration.default_model("cuda:1") == configuration.DEFAULT_MODEL
    assert configuration.default_model("cpu") == configuration.TINY


def test_a_chosen_model_is_never_replaced() -> None:
    chosen = configuration.environment({"QWEN3_TTS_MODEL": "some/model"}, {"QWEN3_TTS_DEVICE": "cpu"})
    assert EngineSettings.from_environment(chosen).model == "some/model"


def test_say_writes_a_wav_file_with_true_sizes_and_prints_its_measures(scripted: Serving, tmp_path: Path) -> None:
    target = tmp_path / "hello.wav"
    finished = command("say", "Hello.", "-o", str(target), "--url", scripted.url)
    assert finished.returncode == 0, finished.stderr
    with wave.open(str(target)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        seconds = file.getnframes() / file.getframerate()
        assert len(file.readframes(file.getnframes())) == file.getnframes() * 2
    assert f"{target}: {seconds:.2f} s of speech, first sound after " in finished.stdout
    assert seconds > 0


def test_say_reads_a_text_from_standard_input_and_writes_raw_samples(scripted: Serving, tmp_path: Path) -> None:
    target = tmp_path / "hello.pcm"
    finished = command("say", "-", "-o", str(target), "--url", scripted.url, stdin="Hello from a pipe.")
    assert finished.returncode == 0, finished.stderr
    size = target.stat().st_size
    assert size > 0
    assert size % 2 == 0


@pytest.mark.parametrize("text", [b"caf\xe9", b"-"])
def test_say_refuses_what_is_not_utf_8_in_one_line(text: bytes, tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-P", "-m", "proxy", "say", text, "-o", str(tmp_path / "x.wav"), "--url", "http://127.0.0.1:9"],
        input=b"caf\xe9", capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert finished.returncode == 2
    assert b"isn't UTF-8" in finished.stderr
    assert finished.stderr.count(b"\n") == 1


def test_say_plays_through_a_player(scripted: Serving, tmp_path: Path) -> None:
    player, played = tmp_path / "ffplay", tmp_path / "played.pcm"
    player.write_text(f"#!/bin/sh\ncat > '{played}'\n", encoding="utf-8")
    player.chmod(0o755)
    target = tmp_path / "hello.wav"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    finished = command("say", "Hello.", "--play", "-o", str(target), "--url", scripted.url, PATH=path)
    assert finished.returncode == 0, finished.stderr
    with wave.open(str(target)) as file:
        assert file.readframes(file.getnframes()) == played.read_bytes()


@pytest.mark.parametrize(
    ("says", "code", "told"),
    [("ALSA lib: no card\nNo more combinations to try, audio open failed", 0, "audio open failed"), ("", 3, "code 3")],
)
@pytest.mark.parametrize("reads", [True, False])
def test_say_fails_in_one_line_when_the_player_could_not_play(
    scripted: Serving, tmp_path: Path, says: str, code: int, told: str, reads: bool
) -> None:
    player = tmp_path / "ffplay"
    player.write_text(f"#!/bin/sh\necho '{says}' >&2\n{'cat > /dev/null' if reads else ''}\nexit {code}\n")
    player.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    finished = command("say", "frames=500 chunk=100", "--play", "--url", scripted.url, PATH=path)
    assert finished.returncode == 1
    assert f"ffplay couldn't play the sound: {'it ended with ' if code else ''}" in finished.stderr
    assert told in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert finished.stdout == ""


@pytest.mark.parametrize("arguments", [["config"], ["--help"], ["serve", "--help"], ["voices"], ["say", "Hi"]])
def test_nobody_who_reads_the_output_is_no_failure(scripted: Serving, arguments: list[str], tmp_path: Path) -> None:
    client = arguments[0] in ("voices", "say")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        finished = subprocess.run(
            [sys.executable, "-P", "-m", "proxy", *arguments, *(["--url", scripted.url] if client else [])],
            stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, timeout=LIMIT_S,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (finished.returncode, finished.stderr) == (0, b"")


def test_say_repeats_the_servers_complaint_in_one_line(scripted: Serving, tmp_path: Path) -> None:
    finished = command("say", "Hello.", "--voice", "nobody", "-o", str(tmp_path / "x.wav"), "--url", scripted.url)
    assert finished.returncode == 1
    assert "400" in finished.stderr
    assert "voice" in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert not (tmp_path / "x.wav").exists()


def test_voices_lists_them(scripted: Serving) -> None:
    finished = command("voices", "--url", scripted.url)
    assert finished.returncode == 0, finished.stderr
    assert [line.split() for line in finished.stdout.splitlines()] == [
        ["ryan", "english", "Ryan"],
        ["serena", "english", "Serena"],
    ]


@pytest.mark.parametrize("arguments", [["voices"], ["say", "Hello.", "-o", "never.wav"]])
def test_without_a_server_one_line_says_so(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert here(*arguments, "--url", "http://127.0.0.1:9") == 1
    assert "http://127.0.0.1:9" in (printed := capsys.readouterr().err)
    assert printed.count("\n") == 1


def here(*arguments: str) -> int | str | None:
    """The exit code of a command in this process, which spares a start."""
    try:
        return main(arguments)
    except SystemExit as stopped:
        return stopped.code


def command(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "proxy", *arguments],
        input=stdin, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **environment},
    )  # fmt: skip
