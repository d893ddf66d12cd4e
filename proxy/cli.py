"""The command line: serve, say, voices, config, bench. Reads options and prints; imports no torch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from engine_lib.errors import ConfigurationError, ServiceError
from engine_lib.profile import EngineSettings, packaged_profiles
from proxy import configuration, launch, speak, speak_live
from proxy.bench.options import add_bench_options, add_report_options
from proxy.settings import Settings
from proxy.triton_process import TritonPlan

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

PROGRAM = "qwen3-tts-triton"
TRITON_PORTS = (8001, 8002, 8003)  # gRPC, metrics, HTTP


class _Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print it like any other line."""
        _say_line(self.format_help().rstrip())

    def error(self, message: str) -> NoReturn:
        self.exit(launch.Exit.USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except ConfigurationError as error:
        print(f"{PROGRAM}: {error.message}", file=sys.stderr)
        return launch.Exit.USAGE
    except ServiceError as error:
        print(f"{PROGRAM}: {error.message}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Qwen3-TTS on Triton Inference Server.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, summary: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=summary, description=summary, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip

    serve = command("serve", "Start Triton and the proxy and serve speech until Ctrl-C.")
    serve.set_defaults(command=_serve)
    serve.epilog = (
        "exit codes: 0 stopped as asked, 1 the start failed, 2 a wrong option, setting or port, 3 Triton died, "
        "4 the proxy died\nVariables QWEN3_TTS_* (README) give the defaults; an option wins."
    )
    _add_engine_options(serve)
    _add_serve_options(serve)

    show = command("config", "Print the resolved engine configuration, itself a valid --engine-config file.")
    show.set_defaults(command=_config)
    _add_engine_options(show)

    say = command("say", "Speak a text through a running server, into a file or the loudspeaker.")
    say.set_defaults(command=_say)
    say.add_argument("text", nargs="?", help="what to say; - reads standard input, to its end")
    say.add_argument("--live", action="store_true", help="speak standard input while it is being written")
    say.add_argument("-o", "--output", type=Path, metavar="FILE", help="the suffix picks the format (speech.wav)")
    say.add_argument("--play", action="store_true", help="play it while it is generated")
    say.add_argument("--voice", help="a speaker's name; the server's first by default")
    say.add_argument("--language", help="a language of the checkpoint; found by the text by default")
    say.add_argument("--instructions", help="how to speak, in words")
    say.add_argument("--seed", type=int, help="the same seed makes the same speech")
    _add_client_options(say)

    voices = command("voices", "List the voices of a running server.")
    voices.set_defaults(command=_voices)
    _add_client_options(voices)

    bench = command("bench", "Measure a server under load: open loop, Poisson arrivals; see docs/benchmarks.md.")
    bench.set_defaults(command=_bench)
    _add_client_options(bench)
    add_bench_options(bench)

    report = command("bench-report", "Make one table and one plot of what bench has written.")
    report.set_defaults(command=_bench_report)
    add_report_options(report)
    return parser


def _add_engine_options(parser: argparse.ArgumentParser) -> None:
    """What the Triton models read; each option stands for a variable of configuration.ENGINE."""
    parser.add_argument("--model", metavar="ID|PATH", help="checkpoint: a Hugging Face id, a folder, tiny, or noise")
    profile = parser.add_mutually_exclusive_group()
    profile.add_argument("--profile", metavar="NAME", help=f"one of {', '.join(packaged_profiles())} (ttfa)")
    profile.add_argument("--engine-config", metavar="FILE", help="a profile of your own; it may say extends: NAME")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N (auto)")
    parser.add_argument("--model-cache-dir", metavar="DIR", help="where downloaded checkpoints are kept")
    parser.add_argument("--local-files-only", action="store_const", const="1", help="download nothing")


def _add_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address the proxy listens on (127.0.0.1)")
    parser.add_argument("--port", type=_port, help="port of the proxy; 0 picks a free one (8000)")
    parser.add_argument("--api-key", metavar="KEY", help="ask clients for this key")
    parser.add_argument(
        "--triton-url", type=_address, nargs="+", action="extend", default=[], metavar="HOST:PORT",
        help="gRPC addresses of Triton servers that run elsewhere; none is started",
    )  # fmt: skip
    parser.add_argument("--tritonserver", metavar="PROGRAM", help="the server to start (PATH, then the wheel's)")
    parser.add_argument("--model-repository", metavar="DIR", help="the Triton models (the package's)")
    parser.add_argument("--triton-host", default="127.0.0.1", help="address Triton listens on (127.0.0.1)")
    parser.add_argument(
        "--triton-ports", type=_triton_ports, default=TRITON_PORTS, metavar="GRPC,METRICS,HTTP",
        help="or auto, which picks free ones (8001,8002,8003)",
    )  # fmt: skip
    parser.add_argument(
        "--on-triton-death", choices=["restart", "exit"], default="restart",
        help="what to do when Triton or one of its models dies (restart)",
    )  # fmt: skip
    parser.add_argument(
        "--drain-timeout", type=_seconds, default=30.0, metavar="S",
        help="how long running responses may go on after Ctrl-C or SIGTERM (30)",
    )  # fmt: skip
    parser.add_argument(
        "--announce",
        type=Path,
        metavar="FILE",
        help="keep addresses and pids there (JSON) while the service can be used; there is no such file else",
    )
    parser.add_argument("--verbose", action="store_true", help="show all that Triton prints")


def _add_client_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="the server (http://127.0.0.1:8000)")
    parser.add_argument("--api-key", metavar="KEY", help="the server's key")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port number from 0 to 65535")
    return int(text)


def _triton_ports(text: str) -> tuple[int, int, int]:
    if text == "auto":
        return 0, 0, 0
    try:
        grpc, metrics, http = map(_port, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor three port numbers") from None
    return grpc, metrics, http


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not host or not colon or "/" in host:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT")
    _port(port)
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to 86400")
    return seconds


def _say_line(line: str) -> None:
    """Print it. Once nobody reads what we print, we print nowhere and go on: `config | head -1` is no failure."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _engine_environment(options: argparse.Namespace) -> dict[str, str]:
    """The environment of both processes: ours with what the options say, and with a model in any case."""
    return configuration.environment(
        os.environ,
        {
            "QWEN3_TTS_MODEL": options.model,
            "QWEN3_TTS_PROFILE": options.profile,
            "QWEN3_TTS_ENGINE_CONFIG": options.engine_config,
            "QWEN3_TTS_DEVICE": options.device,
            "QWEN3_TTS_MODEL_CACHE_DIR": options.model_cache_dir,
            "QWEN3_TTS_LOCAL_FILES_ONLY": options.local_files_only,
        },
    )


def _serve(options: argparse.Namespace) -> int:
    environment = _engine_environment(options)
    if options.api_key is not None:
        environment["QWEN3_TTS_API_KEY"] = options.api_key
    plan = launch.Plan(
        environment=environment,
        host=options.host or environment.get("QWEN3_TTS_HOST") or "127.0.0.1",
        port=options.port if options.port is not None else _environment_port(environment),
        triton=None if options.triton_url else _triton_plan(options, environment),
        triton_urls=tuple(options.triton_url),
        drain_timeout_s=options.drain_timeout,
        announce=options.announce,
    )
    Settings.from_environment(environment)  # a wrong one is refused here, before a process starts
    if options.announce:
        _check_writable(options.announce)
    if plan.triton:
        settings = EngineSettings.from_environment(environment)
        if settings.model == configuration.NOISE:
            _say_line(
                "The model is noise, random weights: this server only makes noise. Choose a checkpoint by --model."
            )
        elif settings.model == configuration.TINY:
            _say_line("The model is tiny, the small English voice of this package. Choose another by --model.")
        _say_line(configuration.describe(settings))
    return launch.run(plan, _say_line)


def _check_writable(file: Path) -> None:
    """Raise ConfigurationError unless `file` can be written later on."""
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        problem = "it is a folder" if file.is_dir() else f"no file can be made in {folder}"
        raise ConfigurationError(f"--announce: can't write {file}: {problem}.", param="announce")


def _triton_plan(options: argparse.Namespace, environment: Mapping[str, str]) -> TritonPlan:
    return TritonPlan(
        environment=environment,
        host=options.triton_host,
        ports=options.triton_ports,
        program=options.tritonserver or environment.get("QWEN3_TTS_TRITONSERVER"),
        repository=options.model_repository or environment.get("QWEN3_TTS_MODEL_REPOSITORY"),
        restart=options.on_triton_death == "restart",
        verbose=options.verbose,
    )


def _environment_port(environment: Mapping[str, str]) -> int:
    text = environment.get("QWEN3_TTS_PORT") or "8000"
    try:
        return _port(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigurationError(f"QWEN3_TTS_PORT: {error}.", param="QWEN3_TTS_PORT") from None


def _config(options: argparse.Namespace) -> int:
    _say_line(configuration.describe(EngineSettings.from_environment(_engine_environment(options))))
    return launch.Exit.STOPPED


def _client(options: argparse.Namespace) -> speak.Server:
    default = f"http://127.0.0.1:{_environment_port(os.environ)}"
    return speak.Server(options.url or default, options.api_key or os.environ.get("QWEN3_TTS_API_KEY"))


def _say(options: argparse.Namespace) -> int:
    if options.live == (options.text is not None):
        raise ConfigurationError("say takes either a text or --live.")
    wishes = {
        "voice": options.voice,
        "language": options.language,
        "instructions": options.instructions,
        "seed": options.seed,
    }
    client = _client(options)
    output = options.output or (None if options.play else speak.DEFAULT_OUTPUT)
    if options.live:
        result = speak_live.say_live(client, _read_input, wishes, output=output, play=options.play)
    else:
        result = speak.say(client, _text(options.text), wishes, output=output, play=options.play)
    _say_line(result.summary())
    return launch.Exit.STOPPED


def _text(given: str) -> str:
    """What to say: the argument, or for - all of standard input. Raises ConfigurationError unless it is UTF-8."""
    try:
        # An argument's bytes that aren't UTF-8 come as lone surrogates.
        return (sys.stdin.buffer.read() if given == "-" else os.fsencode(given)).decode("utf-8")
    except UnicodeDecodeError as error:
        where = "Standard input" if given == "-" else "The text"
        raise ConfigurationError(f"{where} isn't UTF-8 (byte {error.start}).", param="text") from None


def _read_input() -> bytes:
    """What has been written to standard input, once there is some; nothing at its end."""
    return os.read(sys.stdin.fileno(), 4096)


def _voices(options: argparse.Namespace) -> int:
    for voice in speak.voices(_client(options)):
        _say_line(f"{voice['id']:<16} {voice['language']:<16} {voice['name']}")
    return launch.Exit.STOPPED


def _bench(options: argparse.Namespace) -> int:
    from proxy.bench import command  # gRPC and numpy, which the other commands do without

    return launch.Exit.STOPPED if command.bench(options, _client(options), _say_line) else 1


def _bench_report(options: argparse.Namespace) -> int:
    from proxy.bench import command

    command.report_all(options, _say_line)
    return launch.Exit.STOPPED
