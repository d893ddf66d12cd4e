"""How soon a known cloned voice is heard, beside a preset speaker, over two servers that run.

    uv run python docs/benchmarks/known_voice.py http://127.0.0.1:8000 http://127.0.0.1:9000

The first serves a CustomVoice checkpoint, the second a Base one, to which two voices of a 5 s sample are added for the
time being. Requests go one at a time, to each way in turn, so that whatever else the machine does meets all alike.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import statistics
import time
import wave
from typing import Any

import httpx
import numpy as np

TEXT = "Hello there, this is a test of how soon the first sound comes."
REF_TEXT = "Hello there, this is a sample of my voice, five seconds long."
ASKED = {"input": TEXT, "response_format": "pcm", "max_new_tokens": 6, "ignore_eos": True, "seed": 1}
WARM_UP = 3
SECONDS, RATE = 5, 24_000


def sample(loudness: float) -> bytes:
    """A WAV file of a tone in noise; random weights hear no more in a person."""
    noise = np.random.default_rng(0).normal(0, 0.1, SECONDS * RATE)
    sound = loudness * (np.sin(np.arange(SECONDS * RATE) * 0.05) / 2 + noise)
    with io.BytesIO() as file:
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(RATE)
            writer.writeframes((sound.clip(-1, 1) * 32767).astype("<i2").tobytes())
        return file.getvalue()


def add(client: httpx.Client, name: str, ref_text: str) -> str:
    """Add a voice; its id."""
    fields = {"name": name, "consent": "made by a program"} | ({"ref_text": ref_text} if ref_text else {})
    answer = client.post("/v1/audio/voices", data=fields, files={"audio_sample": ("sample.wav", sample(0.9))})
    answer.raise_for_status()
    voice: str = answer.json()["id"]
    return voice


def first_sound_ms(client: httpx.Client, fields: dict[str, Any]) -> float:
    """From sending a request to the first bytes of its sound; the rest is read too."""
    begin = time.perf_counter()
    with client.stream("POST", "/v1/audio/speech", json=ASKED | fields) as response:
        response.raise_for_status()
        pieces = response.iter_raw()
        next(pieces)
        took_s = time.perf_counter() - begin
        for _ in pieces:
            pass
    return took_s * 1000


def measure(
    preset: httpx.Client, base: httpx.Client, voices: dict[str, str], rounds: int
) -> tuple[dict[tuple[str, str], list[float]], list[float]]:
    """Times to the first sound in ms: by who speaks and the prompt's layout, and of voices never heard before."""
    ways: dict[tuple[str, str], tuple[httpx.Client, dict[str, Any]]] = {}
    for layout, whole in (("whole text", True), ("streaming", False)):
        ways["preset speaker", layout] = preset, {"non_streaming_mode": whole}
        for kind, voice in voices.items():
            ways[f"known voice, {kind}", layout] = base, {"non_streaming_mode": whole, "voice": voice}
    taken: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    for _ in range(WARM_UP + rounds):
        for way, (client, fields) in ways.items():
            taken[way].append(first_sound_ms(client, fields))
    new = []
    for number in range(10):
        file = base64.b64encode(sample(0.8 - number / 100)).decode()
        new.append(first_sound_ms(base, {"ref_audio": file, "ref_text": REF_TEXT}))
    return taken, new


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", help="URL of a server with speakers of its own")
    parser.add_argument("base", help="URL of a server that clones voices")
    parser.add_argument("--rounds", type=int, default=40, help="requests of each way (40)")
    options = parser.parse_args()
    with (
        httpx.Client(base_url=options.preset, timeout=300) as preset,
        httpx.Client(base_url=options.base, timeout=300) as base,
    ):
        voices: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            for kind, ref_text in (("x-vector", ""), ("sample", REF_TEXT)):
                voices[kind] = add(base, f"Known by {kind}", ref_text)
                stack.callback(base.delete, f"/v1/audio/voices/{voices[kind]}")
            taken, new = measure(preset, base, voices, options.rounds)
    print("| first sound, ms | layout | median | fastest | of the preset's median |\n|---|---|---|---|---|")
    for (who, layout), all_of_them in taken.items():
        measured = all_of_them[WARM_UP:]
        share = statistics.median(measured) / statistics.median(taken["preset speaker", layout][WARM_UP:])
        print(f"| {who} | {layout} | {statistics.median(measured):.1f} | {min(measured):.1f} | {share:.2f} |")
    print(f"| new sample of {SECONDS} s, with text | | {statistics.median(new):.1f} | {min(new):.1f} | |")


if __name__ == "__main__":
    main()
