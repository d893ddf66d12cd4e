"""What the proxy counts, for Prometheus; docs/metrics.md explains it. The engine's numbers are on Triton's /metrics."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from proxy.playback import Playback
from proxy.pool import Server

FIRST_AUDIO_BUCKETS_S = (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
FACTOR_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 5)

# Of each series a second one with the time of its start, which nobody asked for.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The meters of one app, in a registry of their own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "qwen3_tts_proxy_requests", "HTTP requests answered", ["route", "status"], registry=registry
        )
        self.utterances = Counter(
            "qwen3_tts_proxy_utterances",
            "Utterances by how they ended: a finish reason, an error's code, or left",
            ["outcome"],
            registry=registry,
        )
        self.active_streams = Gauge(
            "qwen3_tts_proxy_active_streams", "Utterances that are waiting, spoken or sent", registry=registry
        )
        self.first_audio = Histogram(
            "qwen3_tts_proxy_first_audio_seconds",
            "From a request's arrival, or a live text's first piece, to the first bytes of its sound",
            buckets=FIRST_AUDIO_BUCKETS_S,
            registry=registry,
        )
        self.real_time = Histogram(
            "qwen3_tts_proxy_real_time_factor",
            "From a request's arrival to the arrival of its last sound, by the sound's length; live text doesn't count",
            buckets=FACTOR_BUCKETS,
            registry=registry,
        )
        self.underruns = Counter(
            "qwen3_tts_proxy_underruns",
            "How often a listener without a buffer ran out of sound in the middle of an utterance",
            ["text"],
            registry=registry,
        )
        self.silence = Counter(
            "qwen3_tts_proxy_underrun_seconds", "How long those silences were", ["text"], registry=registry
        )
        for text in ("whole", "live"):
            self.underruns.labels(text)
            self.silence.labels(text)
        self.open_sockets = Gauge("qwen3_tts_proxy_open_sockets", "WebSocket clients connected", registry=registry)
        self.audio = Counter("qwen3_tts_proxy_audio_seconds", "Sound sent", registry=registry)

    def watch(self, servers: Iterable[Server]) -> None:
        """Show the state of each Triton server behind this proxy."""
        ready = Gauge(
            "qwen3_tts_proxy_server_ready", "Whether a Triton server can speak", ["server"], registry=self._registry
        )
        streams = Gauge(
            "qwen3_tts_proxy_server_streams",
            "Streams of a Triton server: this proxy's, and others' as the engine last told",
            ["server"],
            registry=self._registry,
        )
        for server in servers:
            ready.labels(server.client.url).set_function(partial(_is_ready, server))
            streams.labels(server.client.url).set_function(partial(_load, server))

    def ended(self, outcome: str, audio_s: float, playback: Playback, text: Literal["whole", "live"]) -> None:
        """Count an utterance that is over, and how it was heard."""
        self.utterances.labels(outcome).inc()
        self.audio.inc(audio_s)
        self.underruns.labels(text).inc(playback.underruns)
        self.silence.labels(text).inc(playback.silent_s)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)


def _is_ready(server: Server) -> float:
    return float(server.ready)


def _load(server: Server) -> float:
    return float(server.load)
