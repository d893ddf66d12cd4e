"""Strangers' files of sound: what can be read comes out as samples, all else as an error that names the field."""

from __future__ import annotations

import base64
import io
import os
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from engine_lib.errors import InvalidRequest, Overloaded
from engine_lib.wire import SAMPLE_RATE
from proxy import samples
from proxy.errors import BodyTooLarge
from proxy.samples import Decoder, from_text
from tests.golden import golden
from tests.sounds import encoded, tone


@pytest.fixture
def decoder() -> Decoder:
    return Decoder()


async def refusal(decoder: Decoder, data: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await decoder.decode(data, "ref_audio")
    assert caught.value.param == "ref_audio"
    return caught.value.message


async def test_samples_at_our_rate_come_through_unchanged(decoder: Decoder) -> None:
    original = golden("clone_frontend")["ref_audio"]
    np.testing.assert_array_equal(await decoder.decode(encoded(original), "ref_audio"), original)


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        ("wav", "pcm_s16le", 8_000),
        ("wav", "pcm_u8", 11_025),
        ("wav", "pcm_s24le", 96_000),
        ("w64", "pcm_s16le", 24_000),
        ("aiff", "pcm_s16be", 44_100),
        ("au", "pcm_s16be", 22_050),
        ("caf", "pcm_s16le", 48_000),
        ("flac", "flac", 44_100),
        ("mp3", "libmp3lame", 44_100),
        ("adts", "aac", 48_000),
        ("ipod", "aac", 32_000),
        ("mp4", "alac", 44_100),
        ("ogg", "libopus", 48_000),
        ("webm", "libopus", 48_000),
        ("matroska", "ac3", 48_000),
        ("asf", "wmav2", 44_100),
        ("mpegts", "mp2", 48_000),
        ("tta", "tta", 44_100),
        ("wv", "wavpack", 44_100),
    ],
)
async def test_any_kind_of_file_at_any_rate_becomes_mono_at_ours(
    container: str, codec: str, rate: int, decoder: Decoder
) -> None:
    sent = tone(2.0, rate)
    heard = await decoder.decode(encoded(np.stack([sent, sent]), rate, container, codec), "ref_audio")
    assert abs(len(heard) - 2 * SAMPLE_RATE) < 0.1 * SAMPLE_RATE  # encoders add a frame
    middle = heard[SAMPLE_RATE // 2 : SAMPLE_RATE * 3 // 2]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert abs(int(spectrum.argmax()) - 220) <= 1  # Hz
    assert 0.4 < np.abs(middle).max() < 0.6


async def test_ogg_vorbis_is_read(decoder: Decoder) -> None:
    file = io.BytesIO()
    soundfile.write(file, tone(2.0, 44_100), 44_100, format="OGG", subtype="VORBIS")  # FFmpeg's own encoder is a draft
    assert abs(len(await decoder.decode(file.getvalue(), "ref_audio")) - 2 * SAMPLE_RATE) < 100


async def test_channels_are_averaged(decoder: Decoder) -> None:
    left, right = tone(1.5, hertz=200), tone(1.5, hertz=300)
    heard = await decoder.decode(encoded(np.stack([left, right])), "ref_audio")
    np.testing.assert_allclose(heard, (left + right) / 2, atol=1e-6)


def header(data_bytes: int, rate: int = 24_000) -> bytes:
    """A WAV header that promises so many bytes of 16-bit mono."""
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", 36 + data_bytes, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", data_bytes),
    )


def bomb() -> bytes:
    """Hours of silence in a small file."""
    silence = np.zeros(30 * 60 * 8_000, np.float32)
    return encoded(silence, 8_000, "flac", "flac")


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{}\n#EXT-X-ENDLIST\n"
SOUND = encoded(tone(3.0), container="wav", codec="pcm_s16le")
UNREADABLE = {
    "text": b"root:x:0:0:root:/root:/bin/bash\n" * 100,
    "random": np.random.default_rng(1).bytes(100_000),
    "zip": b"PK\x03\x04" + bytes(1000),
    "gzip": b"\x1f\x8b\x08" + bytes(1000),
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(1000),
    "one byte": b"R",
    "header alone": SOUND[:44],
    "wav cut off": SOUND[: len(SOUND) // 2],
    "flac cut off": (flac := encoded(tone(5.0), container="flac", codec="flac"))[: len(flac) // 2],
    "m4a cut off": (m4a := encoded(tone(5.0), container="ipod", codec="aac"))[: len(m4a) // 2],
    "ogg header alone": encoded(tone(2.0), 48_000, "ogg", "libopus")[:100],
    "hls playlist": PLAYLIST.format("file:///etc/hostname").encode(),
    "hls playlist of an address": PLAYLIST.format("http://127.0.0.1:9/x.ts").encode(),
    "concat script": b"ffconcat version 1.0\nfile /etc/hostname\n",
    "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    "dash manifest": b'<?xml version="1.0"?><MPD><BaseURL>http://127.0.0.1:9/</BaseURL></MPD>',
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/hostname"/></svg>',
}


@pytest.mark.parametrize("kind", UNREADABLE)
async def test_what_is_no_whole_file_of_sound_is_refused(kind: str, decoder: Decoder) -> None:
    assert "ref_audio" in await refusal(decoder, UNREADABLE[kind])


async def test_files_that_name_others_reach_none_of_them(decoder: Decoder, tmp_path: Path) -> None:
    secret = tmp_path / "secret.wav"
    secret.write_bytes(SOUND)
    for script in (
        f"ffconcat version 1.0\nfile '{secret}'\n",
        PLAYLIST.format(secret),
        PLAYLIST.format(f"file:{secret}"),
    ):
        assert "can be read" in await refusal(decoder, script.encode())


async def test_a_bomb_is_refused_before_it_is_unpacked(decoder: Decoder) -> None:
    small = bomb()
    assert len(small) < 1 << 20
    assert "longer than 30 s" in await refusal(decoder, small)


async def test_a_header_that_promises_the_world_is_refused(decoder: Decoder) -> None:
    assert "ref_audio" in await refusal(decoder, header(0xFFFFFF00) + bytes(96_000))


@pytest.mark.parametrize(
    ("sound", "complaint"),
    [
        (np.zeros(48_000, np.float32), "silent"),
        (tone(2.0) * 1e-4, "silent"),
        (tone(0.9), "1 to 30 s"),
        (tone(30.5), "30 s"),
        (tone(31.5), "30 s"),
        (tone(200.0), "30 s"),
        (np.full(48_000, np.nan, np.float32), "finite"),
        (np.full(48_000, np.inf, np.float32), "finite"),
    ],
)
async def test_sound_that_no_voice_can_be_taken_from_is_refused(sound, complaint: str, decoder: Decoder) -> None:
    assert complaint in await refusal(decoder, encoded(sound))


async def test_an_empty_file_is_refused(decoder: Decoder) -> None:
    assert "empty" in await refusal(decoder, b"")


async def test_a_streamed_wav_of_our_own_is_read_although_its_header_knows_no_size(decoder: Decoder) -> None:
    with io.BytesIO() as file:
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(24_000)
            writer.writeframes((tone(2.0) * 32767).astype("<i2").tobytes())
        sound = bytearray(file.getvalue())
    sound[4:8] = sound[40:44] = b"\xff" * 4
    assert len(await decoder.decode(bytes(sound), "ref_audio")) == 48_000


async def test_one_broken_decoder_leaves_the_next_one_alone(decoder: Decoder, monkeypatch) -> None:
    monkeypatch.setattr(samples, "LIMIT_S", 0.001)
    await refusal(decoder, SOUND)
    monkeypatch.undo()
    assert len(await decoder.decode(SOUND, "ref_audio")) == 3 * SAMPLE_RATE


async def test_more_files_than_may_wait_are_refused(decoder: Decoder, monkeypatch) -> None:
    monkeypatch.setattr(samples, "MAX_WAITING", 0)
    with pytest.raises(Overloaded):
        await decoder.decode(SOUND, "ref_audio")


def test_a_file_comes_as_base64_or_as_a_data_url() -> None:
    data = os.urandom(1000)
    text = base64.b64encode(data).decode()
    for sent in (
        text,
        f"data:audio/wav;base64,{text}",
        f"DATA:;base64,{text}",
        f"data:audio/ogg;codecs=opus;base64,{text}",
    ):
        assert from_text(sent, 1000, "ref_audio") == data


@pytest.mark.parametrize(
    "text",
    ["a", "ab=c", "не base64", "data:audio/wav,abc", "data:;base64", "file:///etc/passwd", "/etc/passwd", "a b="],
)
def test_any_other_text_is_no_file(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        from_text(text, 1000, "ref_audio")
    assert caught.value.param == "ref_audio"


@pytest.mark.parametrize("size", [1001, 2000])
def test_a_file_over_the_limit_is_too_large(size: int) -> None:
    with pytest.raises(BodyTooLarge):
        from_text(base64.b64encode(bytes(size)).decode(), 1000, "ref_audio")
