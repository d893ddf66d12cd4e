"""Cloned voices over HTTP and WebSocket, as clients see them: the real engine on the small Base checkpoint."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import psutil
import pytest

from engine_lib.wire import Voice
from proxy import cloning
from proxy.settings import Settings
from proxy.triton_client import TritonClient
from tests.e2e.test_http import PATIENCE, pcm, speak
from tests.golden import Golden, clones, golden
from tests.proxy.live_client import PROTOCOL, live
from tests.proxy.test_readiness import proxy
from tests.proxy.test_voice_store import NAMES_REFUSED
from tests.serving import Serving, wait_for
from tests.sounds import encoded, tone

GREEDY = {"do_sample": False, "subtalker_dosample": False, "repetition_penalty": 1.05}
SAMPLE = golden("clone_frontend")["ref_audio"]
WAV = encoded(SAMPLE)
SHORT = {"max_new_tokens": 4, "ignore_eos": True, "seed": 1}


def asked(case: Golden) -> dict[str, object]:
    """A case's request in our own fields, but for who speaks."""
    request = dict(case.info["request"])
    fields = {name: request[name] for name in ("language", "non_streaming_mode") if name in request}
    return {"words": request["text"], **fields, **GREEDY, "max_new_tokens": case.info["max_new_tokens"]}


def add(url: str, name: str, sound: bytes = WAV, key: str = "none", **fields: str) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/audio/voices",
        data={"name": name, "consent": "cons_1", **fields},
        files={"audio_sample": ("sample.wav", sound, "audio/wav")},
        headers={"Authorization": f"Bearer {key}"},
        timeout=PATIENCE,
    )


def listed(url: str, key: str = "none") -> list[dict[str, object]]:
    answer = httpx.get(f"{url}/v1/audio/voices", headers={"Authorization": f"Bearer {key}"})
    return answer.json()["voices"]


def data_url(sound: bytes) -> str:
    return "data:audio/wav;base64," + base64.b64encode(sound).decode()


def folder_of(server: Serving) -> Path:
    return Path(psutil.Process(server.pid("proxy")).environ()["QWEN3_TTS_VOICE_DIR"])


@pytest.fixture(scope="module")
def voices(base_server: Serving) -> dict[str, str]:
    """Names of added voices for the cases: by the case's name."""
    names = {}
    for number, name in enumerate(clones()):
        text = golden(name).info["request"].get("ref_text", "")
        answer = add(base_server.url, f"Voice {number}", ref_text=text)
        assert answer.status_code == 200, answer.text
        assert answer.json()["with_ref_text"] == bool(text)
        names[name] = f"voice-{number}"
    return names


def is_the_official_sound(case: Golden, heard: np.ndarray) -> bool:
    expected = np.round(np.clip(case["wav"], -1, 1) * 32767)
    return len(heard) == len(expected) and bool(np.abs(heard - expected).max() <= 4)  # 1e-4 of full scale


@pytest.mark.parametrize("name", clones())
def test_case_30_a_sample_in_a_request_speaks_the_official_sound_streamed_and_whole(
    name: str, base_server: Serving
) -> None:
    case = golden(name)
    voice = {"ref_audio": data_url(WAV), "ref_text": case.info["request"].get("ref_text")}
    for stream, chunks in ((False, None), (True, [1]), (True, [3, 1, 7])):
        heard = pcm(speak(base_server, **asked(case), **voice, stream=stream, stream_chunk_schedule=chunks))
        assert is_the_official_sound(case, heard)


@pytest.mark.parametrize("name", clones())
def test_an_added_voice_speaks_the_official_sound_by_its_name(name: str, voices, base_server: Serving) -> None:
    assert is_the_official_sound(golden(name), pcm(speak(base_server, **asked(golden(name)), voice=voices[name])))


@pytest.mark.parametrize("name", [name for name in clones() if "stream" in name])
async def test_live_text_in_an_added_voice_is_the_official_sound(name: str, voices, base_server: Serving) -> None:
    case = golden(name)
    fields = asked(case) | {"x_vector_only_mode": False, "mask_eos_until_text_end": False, "voice": voices[name]}
    words = str(fields.pop("words"))
    async with live(base_server.url, [PROTOCOL]) as client:
        await client.start(**fields)
        for at in range(0, len(words), 7):
            await client.append(words[at : at + 7])
        await client.end()
        assert (await client.until("response.done"))["stop_reason"] == "length"
    assert is_the_official_sound(case, np.frombuffer(client.pcm, "<i2").astype(int))


async def test_live_text_in_an_added_voice_sounds_before_it_ends(voices, base_server: Serving) -> None:
    async with live(base_server.url, [PROTOCOL]) as client:
        await client.start(voice=voices["bc_icl_ns"], seed=1, max_new_tokens=20, ignore_eos=True)
        await client.append("Good morning ")
        await client.append("to you ")
        await client.until_sound()
        await client.end()
        await client.until("response.done")


async def test_live_text_in_an_unknown_voice_is_refused(base_server: Serving) -> None:
    async with live(base_server.url) as client:
        await client.start(voice="nobody")
        assert (await client.next())["error"]["param"] == "voice"


def test_an_x_vector_speaks(base_server: Serving) -> None:
    case = golden("bc_xvec_stream")
    vector = golden("clone_frontend")["x_vector"].tolist()
    assert is_the_official_sound(case, pcm(speak(base_server, **asked(case), speaker_embedding=vector)))


def test_the_openai_package_adds_a_voice_and_speaks_with_it(base_server: Serving) -> None:
    client = openai.OpenAI(base_url=f"{base_server.url}/v1", api_key="none")
    voice = client.audio.voices.create(name="From OpenAI", audio_sample=("a.wav", WAV), consent="cons_1234")
    assert (voice.object, voice.name, voice.type) == ("audio.voice", "From OpenAI", "audio_sample")
    for name in ("From OpenAI", {"id": voice.id}):
        sound = client.audio.speech.create(
            model="tts-1", voice=name, input="Hello.", response_format="pcm", extra_body=SHORT
        )
        assert len(sound.content) == 3 * 1920 * 2


def test_a_voice_is_listed_found_and_gone_once_it_is_deleted(base_server: Serving) -> None:
    url = base_server.url
    made = add(url, "Short-lived").json()
    assert made in listed(url)
    assert httpx.get(f"{url}/v1/audio/voices/{made['id']}").json() == made
    assert made in httpx.get(f"{url}/v1/models/tts-1").json()["voices"]
    gone = httpx.delete(f"{url}/v1/audio/voices/{made['id']}")
    assert gone.json() == {"id": made["id"], "object": "audio.voice.deleted", "deleted": True}
    assert made not in listed(url)
    for answer in (httpx.delete(f"{url}/v1/audio/voices/{made['id']}"), speak(base_server, voice="short-lived")):
        assert answer.status_code in (400, 404)


def test_voices_survive_a_restart_of_the_proxy(base_server: Serving, tmp_path: Path, voices) -> None:
    settings = Settings(triton_urls=(base_server.triton_grpc,), voice_dir=tmp_path)
    with proxy(settings) as url:
        wait_for(lambda: httpx.get(f"{url}/ready").status_code == 200)
        made = add(url, "Kept").json()
    with proxy(settings) as url:
        wait_for(lambda: httpx.get(f"{url}/ready").status_code == 200)
        assert listed(url) == [made]
        body = {"input": "Hi.", "voice": made["id"], "response_format": "pcm", **SHORT}
        assert httpx.post(f"{url}/v1/audio/speech", json=body, timeout=PATIENCE).status_code == 200


@pytest.fixture(scope="module")
def shared(base_server: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A proxy with two keys and room for two voices each."""
    folder = tmp_path_factory.mktemp("shared")
    settings = Settings(triton_urls=(base_server.triton_grpc,), api_keys=("one", "two"), voice_dir=folder, max_voices=2)
    with proxy(settings) as url:
        wait_for(lambda: httpx.get(f"{url}/ready").status_code == 200)
        yield url


def test_a_voice_of_one_key_is_unknown_to_another(shared: str) -> None:
    made = add(shared, "Mine", key="one").json()
    assert listed(shared, "one") == [made]
    assert listed(shared, "two") == listed(shared) == []
    path = f"{shared}/v1/audio/voices/{made['id']}"
    two = {"Authorization": "Bearer two"}
    assert httpx.get(path, headers=two).status_code == httpx.delete(path, headers=two).status_code == 404
    body = {"input": "Hi.", "response_format": "pcm", **SHORT}
    for name in ("Mine", made["id"]):
        refused = httpx.post(f"{shared}/v1/audio/speech", json={**body, "voice": name}, headers=two)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "voice")
        assert "Mine" not in refused.text
    assert add(shared, "Mine", key="two").status_code == 200  # a name is free to each


async def test_live_text_knows_the_voices_of_its_key_alone(shared: str) -> None:
    assert (await asyncio.to_thread(add, shared, "Ours", key="one")).status_code == 200
    for key, kind in (("one", "request.configured"), ("two", "error")):
        async with live(shared, [f"api-key.{key}"]) as client:
            await client.start(voice="Ours")
            assert (await client.next())["type"] == kind


def test_voices_are_capped_and_adding_needs_a_key(shared: str) -> None:
    assert add(shared, "No key").status_code == 401
    answers = [add(shared, f"Number {number}", key="one") for number in range(3)]
    assert answers[-1].status_code == 400
    assert answers[-1].json()["error"]["code"] == "too_many_voices"
    assert len(listed(shared, "one")) == 2


def test_case_41_a_sample_under_another_name_and_a_bad_one_leave_the_service_well(base_server: Serving) -> None:
    url = base_server.url
    assert add(url, "Label a").status_code == 200
    assert add(url, "Label b").status_code == 200
    assert add(url, "Label c", sound=b"RIFF").status_code == 400
    assert add(url, "Label d", sound=encoded(np.zeros(48_000, np.float32))).status_code == 400
    sounds = [pcm(speak(base_server, "Hello.", voice=f"Label {name}", **SHORT)) for name in "ab"]
    assert np.abs(sounds[0] - sounds[1]).max() <= 1


def test_bad_uploads_are_refused_and_leave_neither_files_nor_log_lines_of_theirs(base_server: Serving) -> None:
    url, folder = base_server.url, folder_of(base_server)
    before = sorted(folder.iterdir()) if folder.exists() else []
    silent, secret = encoded(np.zeros(48_000, np.float32)), "Sesame Street 12345"
    refused = [add(url, name.replace("\ud800", "/")) for name in NAMES_REFUSED]
    refused += [
        add(url, secret, sound=b""),
        add(url, secret, sound=silent),
        add(url, secret, sound=WAV[: len(WAV) // 2]),
        add(url, secret, sound=b"PK\x03\x04" + bytes(10_000)),
        add(url, secret, sound=encoded(np.zeros(8_000 * 1800, np.float32), 8_000, "flac", "flac")),
        add(url, secret, sound=encoded(tone(31.5))),
        add(url, secret, sound=encoded(tone(0.5))),
        add(url, secret, consent=" "),
        add(url, secret, consent="c" * 600),
        add(url, secret, ref_text="t" * 3000),
        add(url, secret, type="prompt"),
        httpx.post(f"{url}/v1/audio/voices", data={"name": secret, "consent": "c", "audio_sample": "text"}),
        httpx.post(f"{url}/v1/audio/voices", files={"audio_sample": WAV}),
        httpx.post(f"{url}/v1/audio/voices", json={"name": secret}),
        httpx.post(f"{url}/v1/audio/voices", content=b"--x", headers={"Content-Type": "multipart/form-data"}),
        httpx.post(
            f"{url}/v1/audio/voices", content=b"nothing", headers={"Content-Type": "multipart/form-data; boundary=x"}
        ),
        add(url, secret, sound=bytes(11 << 20)),
    ]
    assert {answer.status_code for answer in refused} == {400, 413, 415}, [answer.text for answer in refused]
    for answer in refused:
        assert answer.json()["error"]["message"]
    assert (sorted(folder.iterdir()) if folder.exists() else []) == before
    assert "Sesame" not in base_server.output
    assert "passwd" not in base_server.output


def test_an_upload_without_end_is_refused_before_it_is_held(base_server: Serving) -> None:
    """A gigabyte that says so, and one that doesn't."""
    proxy_process = psutil.Process(base_server.pid("proxy"))
    before = proxy_process.memory_info().rss
    gigabyte = [bytes(1 << 20)] * 1024
    for headers in ({"Content-Length": str(1 << 30)}, {}):
        kind = {"Content-Type": "multipart/form-data; boundary=x", **headers}
        answer = httpx.post(
            f"{base_server.url}/v1/audio/voices", content=iter(gigabyte), headers=kind, timeout=PATIENCE
        )
        assert answer.status_code == 413
    assert proxy_process.memory_info().rss - before < 64 << 20


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "voice"),
        ({"voice": "nobody"}, "voice"),
        ({"voice": "../../etc/passwd"}, "voice"),
        ({"voice": "alloy"}, "voice"),
        ({"ref_audio": "https://example.com/a.wav"}, "ref_audio"),
        ({"ref_audio": "http://169.254.169.254/latest/meta-data"}, "ref_audio"),
        ({"ref_audio": "file:///etc/passwd"}, "ref_audio"),
        ({"ref_audio": "/etc/passwd"}, "ref_audio"),
        ({"ref_audio": data_url(b"RIFF")}, "ref_audio"),
        ({"ref_audio": data_url(bytes(21 << 19))}, "ref_audio"),
        ({"ref_audio": ""}, "ref_audio"),
        ({"ref_audio": 5}, "ref_audio"),
        ({"ref_audio": data_url(WAV), "ref_text": 5}, "ref_text"),
        ({"ref_audio": data_url(WAV), "ref_text": "\x00"}, "ref_text"),
        ({"ref_text": "Hello."}, "ref_text"),
        ({"speaker_embedding": [0.5]}, "speaker_embedding"),
        ({"speaker_embedding": [float("nan")] * 48}, "speaker_embedding"),
        ({"speaker_embedding": ["1"] * 48}, "speaker_embedding"),
        ({"speaker_embedding": [1e300] * 48}, "speaker_embedding"),
        ({"speaker_embedding": [0.5] * 48, "ref_audio": data_url(WAV)}, "speaker_embedding"),
    ],
)
def test_a_voice_that_is_none_is_refused_by_its_field(fields: dict, param: str, base_server: Serving) -> None:

    body = json.dumps({"input": "Hi.", **fields})
    answer = httpx.post(
        f"{base_server.url}/v1/audio/speech",
        content=body,
        headers={"Content-Type": "application/json"},
        timeout=PATIENCE,
    )
    assert answer.status_code in (400, 413), answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("fields", [{"ref_audio": data_url(WAV)}, {"speaker_embedding": [0.5] * 48}])
def test_a_model_with_voices_of_its_own_clones_none(fields: dict, server: Serving) -> None:
    answer = speak(server, "Hi.", **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(fields)))
    refused = add(server.url, "Aunt")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "cloning_unsupported")


def distinct(number: int) -> bytes:
    """Another sample each time."""
    return encoded(np.roll(SAMPLE, number * 50)[:24_000] * (1 - number / 1000))


async def test_sixteen_voices_at_once_sound_as_each_alone(base_server: Serving) -> None:
    body = {"input": "Hello, you.", "response_format": "pcm", "max_new_tokens": 6, "ignore_eos": True}
    bodies = [
        {**body, "seed": number, "ref_audio": data_url(distinct(number * 7)), "ref_text": "Yes."}
        for number in range(16)
    ]
    async with httpx.AsyncClient(timeout=PATIENCE) as client:

        async def sound(asked: dict) -> np.ndarray:
            return pcm(await client.post(f"{base_server.url}/v1/audio/speech", json=asked))

        alone = [await sound(asked) for asked in bodies]
        together = await asyncio.gather(*map(sound, bodies))
    for one, other in zip(alone, together, strict=True):
        assert len(one) == len(other)
        assert np.abs(one - other).max() <= 1


def test_case_51_of_samples_in_requests_only_the_latest_are_remembered(
    base_server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = TritonClient.make_voice

    def counted(self: TritonClient, samples: np.ndarray, text: str) -> Awaitable[Voice]:
        made.append(len(samples))
        return make(self, samples, text)

    monkeypatch.setattr(TritonClient, "make_voice", counted)
    monkeypatch.setattr(cloning, "REMEMBERED", 2)
    with proxy(Settings(triton_urls=(base_server.triton_grpc,), voice_dir=tmp_path)) as url:
        wait_for(lambda: httpx.get(f"{url}/ready").status_code == 200)
        before, seen = len(made), []
        for number in (0, 0, 1, 2, 1, 0):
            body = {"input": "Hi.", "ref_audio": data_url(distinct(number)), "response_format": "pcm", **SHORT}
            assert httpx.post(f"{url}/v1/audio/speech", json=body, timeout=PATIENCE).status_code == 200
            seen.append(len(made) - before)
    assert seen == [1, 1, 2, 3, 3, 4]


def test_the_engine_counts_voices(base_server: Serving, voices) -> None:
    page = httpx.get(base_server.facts["triton_metrics"]).text
    count = re.search(r"^qwen3_tts_voices_total\S* (\S+)$", page, re.MULTILINE)
    assert count
    assert float(count[1]) >= len(voices)
