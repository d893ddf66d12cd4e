"""The programs that people have speak through us unchanged. Real packages, real servers, scripted models.

LiveKit and pipecat take seconds to import, so the tests that need them do it, and not whoever collects them.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import openai
import pytest

from engine_lib.wire import FRAME_SECONDS, SAMPLE_RATE, SAMPLES_PER_FRAME
from proxy.settings import Settings
from tests.proxy.live_client import heard
from tests.proxy.test_readiness import proxy, status
from tests.serving import Serving, wait_for

FRAMES = 10
TEXT = f"frames={FRAMES}"
PCM_BYTES = FRAMES * SAMPLES_PER_FRAME * 2


@pytest.fixture
def client(scripted: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="unused", max_retries=0) as opened:
        yield opened


def test_openai_create_waits_for_the_whole_file(client: openai.OpenAI) -> None:
    whole = client.audio.speech.create(model="tts-1", voice="ryan", input=TEXT, response_format="pcm")
    assert heard(whole.content) == list(range(FRAMES))


def test_openai_without_a_format_gets_mp3(client: openai.OpenAI) -> None:
    whole = client.audio.speech.create(model="tts-1-hd", voice="alloy", input=TEXT)
    with av.open(io.BytesIO(whole.content)) as file:
        assert file.format.name == "mp3"


def test_openai_iter_bytes_gives_sound_while_the_rest_is_still_to_come(client: openai.OpenAI) -> None:
    speech = client.audio.speech.with_streaming_response
    with speech.create(
        model="gpt-4o-mini-tts", voice="ryan", input=f"{TEXT} stall=9", instructions="Softly.", response_format="pcm"
    ) as streamed:
        pieces = streamed.iter_bytes()
        received = b""
        while len(received) < 9 * SAMPLES_PER_FRAME * 2:  # all that comes before the client leaves
            received += next(pieces)
    assert heard(received) == list(range(9))


def test_openai_reads_events_line_by_line(client: openai.OpenAI) -> None:
    speech = client.audio.speech.with_streaming_response
    with speech.create(
        model="gpt-4o-mini-tts", voice="ryan", input=TEXT, response_format="pcm", stream_format="sse"
    ) as streamed:
        events = [json.loads(line.removeprefix("data: ")) for line in streamed.iter_lines() if line]
    *deltas, done = events
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert heard(b"".join(base64.b64decode(event["audio"]) for event in deltas)) == list(range(FRAMES))
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"] > 0


def test_openai_takes_a_voice_as_an_object(client: openai.OpenAI) -> None:
    whole = client.audio.speech.create(model="tts-1", voice={"id": "serena"}, input=TEXT, response_format="pcm")
    assert len(whole.content) == PCM_BYTES
    with pytest.raises(openai.BadRequestError):
        client.audio.speech.create(model="tts-1", voice={"id": "nobody"}, input=TEXT)


def test_openai_lists_what_is_served(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id == "makers/scripted"


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"voice": "nobody"}, openai.BadRequestError, "voice"),
        ({"speed": 9.0}, openai.BadRequestError, "speed"),
        ({"input": " "}, openai.BadRequestError, "input"),
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"input": "refuse=1"}, openai.RateLimitError, None),
        ({"input": "refuse=2"}, openai.InternalServerError, None),  # 503: its class for all from 500 on
    ],
)
def test_openai_raises_its_own_class_for_each_error(
    client: openai.OpenAI, fields: dict, kind: type[openai.APIStatusError], param: str | None
) -> None:
    with pytest.raises(kind) as caught:
        client.audio.speech.create(**{"model": "tts-1", "voice": "ryan", "input": TEXT, **fields})
    assert caught.value.param == param
    assert caught.value.code
    assert caught.value.request_id or caught.value.response.headers["x-request-id"]


def test_openai_raises_its_own_class_for_a_wrong_key(scripted: Serving) -> None:
    with proxy(Settings(triton_urls=(scripted.triton_grpc,), api_key="secret")) as url:
        wait_for(lambda: status(url, "/ready") == 200)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                client.audio.speech.create(model="tts-1", voice="ryan", input=TEXT)
            right = client.with_options(api_key="secret")
            assert right.audio.speech.create(model="tts-1", voice="ryan", input=TEXT).content


async def livekit_frames(url: str, text: str, **options: str) -> list[bytes]:
    """What LiveKit's TTS makes of a text: the PCM of each frame of its own."""
    from livekit.agents import APIConnectOptions
    from livekit.plugins.openai import TTS

    tts = TTS(base_url=f"{url}/v1", api_key="unused", **options)
    try:
        async with tts.synthesize(text, conn_options=APIConnectOptions(max_retry=0)) as stream:
            frames = [event.frame async for event in stream]
    finally:
        await tts.aclose()
    assert {(frame.sample_rate, frame.num_channels) for frame in frames} == {(SAMPLE_RATE, 1)}
    return [bytes(frame.data) for frame in frames]


@pytest.mark.parametrize("model", ["tts-1", "gpt-4o-mini-tts"])  # raw sound, and events
@pytest.mark.parametrize("form", ["pcm", "wav", "mp3", "opus", "aac", "flac"])
async def test_livekit_hears_all_of_the_sound_in_each_format(scripted: Serving, model: str, form: str) -> None:
    frames = await livekit_frames(scripted.url, TEXT, voice="ryan", model=model, response_format=form)
    sound = np.frombuffer(b"".join(frames), "<i2")
    assert len(sound) / SAMPLE_RATE == pytest.approx(FRAMES * FRAME_SECONDS, abs=0.1)
    if form in ("pcm", "wav"):
        assert heard(sound.tobytes()[:PCM_BYTES]) == list(range(FRAMES))


async def test_livekit_tells_of_a_refusal_by_status(scripted: Serving) -> None:
    from livekit.agents import APIStatusError

    with pytest.raises(APIStatusError) as caught:
        await livekit_frames(scripted.url, TEXT, voice="nobody")
    assert caught.value.status_code == 400


async def pipecat_frames(url: str, text: str, **settings: str) -> list[Any]:
    """The frames that pipecat's TTS service sends on for a text, either way, in a pipeline of its own."""
    from pipecat.frames.frames import TTSSpeakFrame
    from pipecat.pipeline.worker import PipelineParams
    from pipecat.services.openai.tts import OpenAITTSService
    from pipecat.tests.utils import run_test

    async with openai.DefaultAsyncHttpxClient() as http_client:  # the service doesn't close one of its own
        service = OpenAITTSService(
            base_url=f"{url}/v1",
            api_key="unused",
            http_client=http_client,
            settings=OpenAITTSService.Settings(model="tts-1", **settings),
        )
        down, up = await run_test(
            service,
            frames_to_send=[TTSSpeakFrame(text)],
            pipeline_params=PipelineParams(audio_out_sample_rate=SAMPLE_RATE),
        )
    return [*down, *up]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pipecat uses what it deprecates itself
async def test_pipecat_hears_all_of_the_sound(scripted: Serving) -> None:
    frames = await pipecat_frames(scripted.url, TEXT, voice="alloy")
    from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame

    assert not [frame for frame in frames if isinstance(frame, ErrorFrame)]
    sound = [frame for frame in frames if isinstance(frame, TTSAudioRawFrame)]
    assert {frame.sample_rate for frame in sound} == {SAMPLE_RATE}
    assert heard(b"".join(frame.audio for frame in sound)) == list(range(FRAMES))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_pipecat_tells_of_a_refusal_by_an_error_frame(scripted: Serving) -> None:
    frames = await pipecat_frames(scripted.url, "refuse=3", voice="alloy")
    from pipecat.frames.frames import ErrorFrame

    assert any("positions" in frame.error for frame in frames if isinstance(frame, ErrorFrame))
