"""Laws of the sound that HTTP answers with, in every format and way. A real server with scripted models."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import socket
import struct
import subprocess
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from engine_lib.wire import FRAME_SECONDS, SAMPLE_RATE, SAMPLES_PER_FRAME
from proxy.audio import Audio
from proxy.schemas import Format
from proxy.triton_client import TritonClient
from tests.proxy.scripted import HERTZ
from tests.proxy.test_triton_client import until
from tests.serving import LIMIT_S, Serving, wait_for

Speak = Callable[..., httpx.Response]
Samples = npt.NDArray[np.float64]

FORMATS = {  # content type and first bytes
    "mp3": ("audio/mpeg", b"\xff\xf3"),
    "opus": ("audio/ogg", b"OggS"),
    "aac": ("audio/aac", b"\xff\xf1"),
    "flac": ("audio/flac", b"fLaC"),
    "wav": ("audio/wav", b"RIFF"),
    "pcm": ("audio/pcm", b""),
}


def decode(form: str, body: bytes, sample_rate: int = SAMPLE_RATE) -> tuple[Samples, int]:
    """Samples from -1 to 1 and their rate, through FFmpeg's decoders."""
    if form == "pcm":
        return np.frombuffer(body, "<i2") / 32768, sample_rate
    with av.open(io.BytesIO(body)) as container:
        stream = container.streams.audio[0]
        frames = [frame.to_ndarray() for frame in container.decode(stream)]
        joined = np.concatenate([frame[0] for frame in frames])
        scale = 32768 if joined.dtype == np.int16 else 2**31 if joined.dtype == np.int32 else 1
        return joined / scale, stream.rate


def pitch(samples: Samples, rate: int) -> float:
    """The strongest frequency, Hz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum)) * rate / len(samples)


def asking(url: str, fields: dict[str, Any]) -> socket.socket:
    """A connection on which a request to speak was sent."""
    body = json.dumps(fields)
    lines = [
        "POST /v1/audio/speech HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    connection = socket.create_connection((host, int(port)), timeout=LIMIT_S)
    connection.sendall("\r\n".join([*lines, "", body]).encode())
    return connection


def chunks_of(http: httpx.Client, **fields: Any) -> list[bytes]:
    """The chunks of a chunked body, as the server cut them."""
    with asking(str(http.base_url), fields) as connection:
        file = connection.makefile("rb")
        while file.readline().strip():
            pass
        found = []
        while size := int(file.readline(), 16):
            found.append(file.read(size))
            file.readline()
        return found


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(block.removeprefix("data: ")) for block in response.text.split("\n\n") if block]


@pytest.fixture
def whole(speak: Speak) -> Samples:
    """The sound of the standard script, as plain samples."""
    return decode("pcm", speak("frames=40", response_format="pcm").content)[0]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("form", FORMATS)
def test_case_4_each_format_is_what_its_content_type_says(
    speak: Speak, form: str, stream: bool, whole: Samples
) -> None:
    response = speak("frames=40", response_format=form, stream=stream)
    assert response.status_code == 200
    content_type, start = FORMATS[form]
    assert response.headers["content-type"] == content_type
    assert response.content.startswith(start)
    samples, rate = decode(form, response.content)
    assert rate == int(response.headers["x-sample-rate"])
    assert pitch(samples, rate) == pytest.approx(HERTZ, abs=2)
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(
        np.sqrt(np.mean(whole**2)), rel=0.1
    )  # LAME turns it down a little


@pytest.mark.parametrize("form", ["flac", "mp3", "opus", "wav"])
def test_a_second_reader_agrees_on_a_whole_file(speak: Speak, form: str) -> None:
    samples, rate = soundfile.read(io.BytesIO(speak("frames=40", response_format=form, stream=False).content))
    assert len(samples) / rate == pytest.approx(40 * FRAME_SECONDS, abs=0.05)
    assert pitch(samples, rate) == pytest.approx(HERTZ, abs=2)


@pytest.mark.parametrize("asked", [" WAV ", "WAV", "Wav"])
def test_case_4_case_and_spaces_of_a_format_are_ignored(speak: Speak, asked: str) -> None:
    assert speak(response_format=asked).headers["content-type"] == "audio/wav"


def test_case_4_no_format_is_mp3(speak: Speak) -> None:
    assert speak(response_format=None).headers["content-type"] == "audio/mpeg"


# ADTS has no place that says how much of the first and last frame isn't sound, so of AAC a decoder plays what the
# encoder begins with, and all of the last frame. An MP3 says the first in its first frame, a whole one the second too.
PRIMING = {"aac": 1024}  # samples; for other formats none is heard
# Samples of the last frame, which is always whole, where the format has no place for the true end.
LAST_FRAME = {("mp3", True): 576, ("aac", True): 1024, ("aac", False): 1024}


@pytest.mark.parametrize("frames", [1, 7, 40, 41])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("form", FORMATS)
def test_case_35_every_format_is_as_long_as_the_sound_within_a_frame_of_its_own(
    speak: Speak, form: str, stream: bool, frames: int
) -> None:
    samples, rate = decode(form, speak(f"frames={frames}", response_format=form, stream=stream).content)
    excess = len(samples) - PRIMING.get(form, 0) - round(frames * FRAME_SECONDS * rate)
    assert 0 <= excess < LAST_FRAME.get((form, stream), 1)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000, 44100, 48000])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac"])
def test_the_sound_begins_at_the_beginning_or_behind_the_priming(form: Format, stream: bool, rate: int) -> None:
    hertz = np.linspace(200, 1500, SAMPLE_RATE // 2)  # nothing in a sweep comes twice
    phase = np.cumsum(hertz) / SAMPLE_RATE  # in turns
    sweep = (8000 * np.sin(2 * np.pi * phase)).astype(np.int16)
    audio = Audio(form, speed=1, sample_rate=rate, whole=not stream)
    plain = Audio("pcm", speed=1, sample_rate=audio.sample_rate, whole=False)
    heard, _ = decode(form, audio.feed(sweep) + audio.finish())
    sound, _ = decode("pcm", plain.feed(sweep) + plain.finish())
    likeness = np.correlate(np.pad(heard, (100, 0)), sound[: -len(sound) // 4])
    assert np.argmax(likeness) - 100 == PRIMING.get(form, 0)


def test_two_mp3_answers_one_after_the_other_play_as_one(speak: Speak) -> None:
    bodies = [speak(f"frames={frames}", response_format="mp3").content for frames in (20, 30)]
    joined, rate = decode("mp3", b"".join(bodies))
    apart = sum(len(decode("mp3", body)[0]) for body in bodies)
    assert 0 <= len(joined) - apart <= 3 * 576  # the second one's first frame and delay are a pause of 70 ms
    assert pitch(joined, rate) == pytest.approx(HERTZ, abs=2)
    halves = joined[: 19 * SAMPLES_PER_FRAME], joined[-29 * SAMPLES_PER_FRAME :]
    for half in halves:
        assert np.sqrt(np.mean(half**2)) > 0.05


FFPROBE = shutil.which("ffprobe")


@pytest.fixture(scope="module")
def ffprobe() -> str:
    if FFPROBE is None and os.environ.get("CI") != "true":
        pytest.skip("ffprobe isn't installed; Debian's package ffmpeg has it")
    assert FFPROBE, "CI installs ffprobe (.ci/run)"
    return FFPROBE


CODECS = {"mp3": "mp3", "opus": "opus", "aac": "aac", "flac": "flac", "wav": "pcm_s16le", "pcm": "pcm_s16le"}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("form", FORMATS)
def test_ffprobe_reads_every_format_to_its_end(
    ffprobe: str, speak: Speak, form: str, stream: bool, tmp_path: Path
) -> None:
    file = tmp_path / "speech"
    file.write_bytes(speak("frames=40", response_format=form, stream=stream).content)
    raw = ["-f", "s16le", "-ar", str(SAMPLE_RATE), "-ch_layout", "mono"] if form == "pcm" else []
    found = subprocess.run(
        [ffprobe, "-v", "warning", *raw, "-count_packets", "-show_entries",
         "stream=codec_name,sample_rate,channels,nb_read_packets:packet=duration_time", "-of", "json", file],
        capture_output=True, check=True,
    )  # fmt: skip
    told = json.loads(found.stdout)
    (sound,) = told["streams"]
    assert (sound["codec_name"], sound["channels"]) == (CODECS[form], 1)
    assert int(sound["sample_rate"]) == (48_000 if form == "opus" else SAMPLE_RATE)
    seconds = sum(float(packet["duration_time"]) for packet in told["packets"])
    assert seconds == pytest.approx(40 * FRAME_SECONDS, abs=0.11)  # packets carry the encoder's delay, see PRIMING
    expected = ["Estimating duration", "growing file?"]  # of what doesn't say its length
    if (form, stream) == ("wav", True):
        expected += ["maximum wav data size", "Packet corrupt"]
    complaints = found.stderr.decode().splitlines()
    assert [line for line in complaints if not any(words in line for words in expected)] == []


def test_case_40_streamed_sound_equals_whole_sound_equals_the_wav_payload(speak: Speak) -> None:
    streamed = speak("frames=40", response_format="pcm").content
    collected = speak("frames=40", response_format="pcm", stream=False).content
    wav = speak("frames=40", response_format="wav").content
    with wave.open(io.BytesIO(speak("frames=40", response_format="wav", stream=False).content)) as reader:
        assert (reader.getnchannels(), reader.getsampwidth(), reader.getframerate()) == (1, 2, SAMPLE_RATE)
        assert reader.readframes(10**9) == streamed
    assert len(streamed) == 2 * SAMPLE_RATE * 40 * 80 // 1000
    assert collected == streamed
    assert wav[44:] == streamed


def test_case_31_a_streamed_wav_has_one_header(http: httpx.Client, speak: Speak) -> None:
    body = speak("frames=40", response_format="wav").content
    assert [at for at in range(len(body)) if body.startswith(b"RIFF", at)] == [0]


def test_case_32_sizes_are_open_when_streamed_and_true_when_whole(speak: Speak) -> None:
    streamed = speak("frames=5", response_format="wav").content
    assert struct.unpack_from("<I", streamed, 4) == struct.unpack_from("<I", streamed, 40) == (0xFFFFFFFF,)
    collected = speak("frames=5", response_format="wav", stream=False).content
    assert struct.unpack_from("<I", collected, 4) == (len(collected) - 8,)
    assert struct.unpack_from("<I", collected, 40) == (len(collected) - 44,)
    assert soundfile.info(io.BytesIO(collected)).frames == 5 * 1920


@pytest.mark.parametrize("fields", [{}, {"speed": 1.37}, {"sample_rate": 22050}, {"speed": 0.71, "sample_rate": 44100}])
@pytest.mark.parametrize("form", ["pcm", "wav"])
def test_case_34_every_chunk_is_whole_samples(http: httpx.Client, form: str, fields: dict[str, Any]) -> None:
    sizes = [len(chunk) for chunk in chunks_of(http, input="frames=20 chunk=3", response_format=form, **fields)]
    assert len(sizes) > 3
    assert [size % 2 for size in sizes] == [0] * len(sizes)


@pytest.mark.parametrize("form", FORMATS)
def test_sound_is_sent_while_the_rest_is_still_to_come(http: httpx.Client, form: str) -> None:
    body = {"input": "frames=20 stall=5", "response_format": form}
    with http.stream("POST", "/v1/audio/speech", json=body) as response:
        assert len(next(response.iter_raw())) > 0  # though no more than a quarter is made


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1.5, 2, 3.3, 4])
def test_speed_changes_the_length_and_not_the_pitch(speak: Speak, speed: float) -> None:
    samples, rate = decode("pcm", speak("frames=40", response_format="pcm", speed=speed).content)
    assert len(samples) / rate == pytest.approx(40 * FRAME_SECONDS / speed, rel=0.02)
    assert pitch(samples, rate) == pytest.approx(HERTZ, abs=5)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
def test_a_sample_rate_changes_neither_length_nor_pitch(speak: Speak, rate: int) -> None:
    response = speak("frames=40", response_format="wav", sample_rate=rate, stream=False)
    assert response.headers["x-sample-rate"] == str(rate)
    samples, told = soundfile.read(io.BytesIO(response.content))
    assert told == rate
    assert len(samples) / rate == pytest.approx(40 * FRAME_SECONDS, abs=0.002)
    assert pitch(samples, rate) == pytest.approx(HERTZ, abs=2)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac"])
def test_every_format_goes_with_every_sample_rate(speak: Speak, form: str, rate: int) -> None:
    response = speak("frames=20", response_format=form, sample_rate=rate)
    samples, told = decode(form, response.content)
    assert told == int(response.headers["x-sample-rate"]) == (48000 if form == "opus" else rate)
    assert pitch(samples, told) == pytest.approx(HERTZ, abs=3)


@pytest.mark.parametrize("fields", [{"speed": 1.37}, {"sample_rate": 22050}, {"speed": 0.3, "sample_rate": 48000}])
def test_reshaped_sound_does_not_depend_on_the_chunks(speak: Speak, fields: dict[str, Any]) -> None:
    fine = speak("frames=21 chunk=1", response_format="pcm", **fields).content
    coarse = speak("frames=21 chunk=21", response_format="pcm", stream=False, **fields).content
    assert fine == coarse


@pytest.mark.parametrize("speed", [1, 4])
@pytest.mark.parametrize("form", FORMATS)
def test_one_frame_is_heard_in_every_format(speak: Speak, form: str, speed: float) -> None:
    samples, _ = decode(form, speak("frames=1", response_format=form, speed=speed).content)
    assert np.abs(samples).max() > 0.05


def test_a_whole_answer_says_its_length_and_how_it_ended(speak: Speak) -> None:
    response = speak("frames=10", response_format="mp3", stream=False)
    assert response.headers["content-length"] == str(len(response.content))
    assert response.headers["x-finish-reason"] == "stop"
    assert float(response.headers["x-audio-seconds"]) == pytest.approx(0.8)
    assert speak("limit=1", stream=False).headers["x-finish-reason"] == "length"
    assert float(speak("frames=10", speed=2, stream=False).headers["x-audio-seconds"]) == pytest.approx(0.4, abs=0.02)


def test_the_seed_comes_back_and_is_drawn_anew_when_left_out(speak: Speak) -> None:
    assert speak(seed=2**63 - 1).headers["x-seed"] == str(2**63 - 1)
    drawn = {speak().headers["x-seed"] for _ in range(3)}
    assert len(drawn) == 3
    assert all(0 <= int(seed) < 2**63 for seed in drawn)


def test_headers_keep_caches_and_buffers_away(speak: Speak) -> None:
    headers = speak().headers
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-request-id"] != speak().headers["x-request-id"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("stream", [True, False])
def test_events_carry_the_same_sound_as_the_raw_answer(speak: Speak, form: str, stream: bool) -> None:
    *deltas, done = events(speak("frames=12", response_format=form, stream_format="sse", stream=stream))
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    joined = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    raw = speak("frames=12", response_format=form, stream=stream).content
    if form == "opus":  # each file of Ogg has a random number of its own
        np.testing.assert_array_equal(decode(form, joined)[0], decode(form, raw)[0])
    else:
        assert joined == raw
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 7, "output_tokens": 12, "total_tokens": 19},
        "finish_reason": "stop",
    }


@pytest.mark.parametrize("script", ["fail=3", "gap=3", "stall=3"])
def test_a_failure_midway_ends_events_with_an_error(speak: Speak, script: str) -> None:
    *_, delta, error = events(speak(script, response_format="pcm", stream_format="sse"))
    assert delta["type"] == "speech.audio.delta"
    assert error["type"] == "speech.audio.error"
    assert error["error"]["code"] == "generation_failed"


@pytest.mark.parametrize("script", ["fail=3", "gap=3", "stall=3"])
@pytest.mark.parametrize("form", ["pcm", "mp3"])
def test_a_failure_midway_breaks_the_connection_of_raw_sound(speak: Speak, script: str, form: str) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
        speak(script, response_format=form)


@pytest.mark.parametrize("script", ["fail=3", "gap=3", "stall=3"])
def test_a_failure_midway_of_a_whole_answer_is_a_500(speak: Speak, script: str) -> None:
    assert speak(script, stream=False).status_code == 500


LEAVERS: list[dict[str, Any]] = [
    {"response_format": "pcm"},
    {"response_format": "mp3", "speed": 1.5},
    {"stream": False},
    {"stream_format": "sse"},
]


@pytest.mark.parametrize("fields", LEAVERS)
@pytest.mark.parametrize("script", ["frames=4000 pace_ms=50", "stall=0"])
async def test_case_7_a_client_that_leaves_frees_its_stream(
    scripted: Serving, triton: TritonClient, script: str, fields: dict[str, Any]
) -> None:
    with asking(scripted.url, {"input": script, **fields}):
        await until(triton, active=1)
    await until(triton, active=0)


def test_a_slow_reader_gets_all_of_it_and_holds_up_nobody(http: httpx.Client, speak: Speak) -> None:
    body = {"input": "frames=1500 chunk=10", "response_format": "pcm"}  # 5.8 MB, more than the sockets buffer
    with http.stream("POST", "/v1/audio/speech", json=body) as response:
        pieces = response.iter_raw()
        received = len(next(pieces))
        assert speak().status_code == 200
        received += sum(map(len, pieces))
    assert received == 1500 * 1920 * 2


@pytest.fixture
def count(http: httpx.Client) -> Callable[[str], float]:
    """The value of one line of /metrics; 0 before it is there."""

    def value(line: str) -> float:
        found = [text.split()[-1] for text in http.get("/metrics").text.splitlines() if text.startswith(f"{line} ")]
        return float(found[0]) if found else 0.0

    return value


def test_metrics_count_requests_utterances_and_first_audio(speak: Speak, count: Callable[[str], float]) -> None:
    lines = [
        'qwen3_tts_proxy_requests_total{route="/v1/audio/speech",status="200"}',
        'qwen3_tts_proxy_requests_total{route="/v1/audio/speech",status="400"}',
        'qwen3_tts_proxy_utterances_total{outcome="length"}',
        "qwen3_tts_proxy_first_audio_seconds_count",
        "qwen3_tts_proxy_audio_seconds_total",
    ]
    wait_for(lambda: count("qwen3_tts_proxy_active_streams") == 0)  # of the tests before
    before = [count(line) for line in lines]
    speak("frames=10 limit=1")
    speak(input="")

    def growth() -> list[float]:
        return [count(line) - value for line, value in zip(lines, before, strict=True)]

    # A request is counted after its answer.
    wait_for(lambda: min(growth()) > 0 and count("qwen3_tts_proxy_active_streams") == 0)
    assert growth() == pytest.approx([1, 1, 1, 1, 0.8])


def test_metrics_tell_how_fast_it_is_and_where_a_listener_hears_nothing(
    speak: Speak, count: Callable[[str], float]
) -> None:
    lines = [
        "qwen3_tts_proxy_real_time_factor_count",
        "qwen3_tts_proxy_real_time_factor_sum",
        'qwen3_tts_proxy_underruns_total{text="whole"}',
        'qwen3_tts_proxy_underrun_seconds_total{text="whole"}',
    ]

    def growth(script: str) -> list[float]:
        is_idle = lambda: count("qwen3_tts_proxy_active_streams") == 0  # noqa: E731
        wait_for(is_idle)  # of the tests before
        before = [count(line) for line in lines]
        speak(script)
        wait_for(is_idle)  # silences are counted at its end, after its last sound
        return [count(line) - value for line, value in zip(lines, before, strict=True)]

    _, factor, gaps, silent_s = growth("frames=50 chunk=50")
    assert factor > 0
    assert (gaps, silent_s) == (0, 0)
    _, factor, gaps, silent_s = growth("frames=3 pace_ms=1000")  # far slower than it plays
    assert factor >= 3
    assert gaps == 2
    assert silent_s >= 2 * 0.5
