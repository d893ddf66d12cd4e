"""The page in a real Chromium, on a real Triton with scripted models, which say what to do in the text itself."""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
import struct
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Browser, Download, Page, expect, sync_playwright

from engine_lib.wire import SAMPLES_PER_FRAME
from tests.proxy.conftest import SCRIPTED
from tests.proxy.scripted import LOUDNESS, STEP, number_of
from tests.serving import LIMIT_S, Serving, serving, stand_in_models, wait_for

CHROMIUM = shutil.which("chromium")
# Without the background-networking flags it looks for Google's hosts at every start.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync",
         # A microphone that beeps, and that every page may use.
         "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]  # fmt: skip
KEY = "a-secret"
LIMIT_MS = 1000 * LIMIT_S

# Notes what is handed to the loudspeaker, and when it is to sound.
LISTEN = """
window.heard = [];
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when) {
  const samples = [...this.buffer.getChannelData(0)].map((sample) => Math.round(sample * 32768));
  window.heard.push({ when, rate: this.buffer.sampleRate, context: this.context.sampleRate, samples });
  return start.call(this, when);
};
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all tests here."""
    if CHROMIUM is None and os.environ.get("CI") != "true":
        pytest.skip("Chromium isn't installed; Debian's package chromium has it")
    assert CHROMIUM, "CI installs Chromium (.ci/run)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = stand_in_models(tmp_path_factory.mktemp("page"))
    for name in ("talker", "codec", "voice"):
        shutil.copy(SCRIPTED / f"{name}.py", repository / name / "1" / "model.py")
    return repository


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("open"), "--model-repository", str(models)) as server:
        yield server


@pytest.fixture(scope="module")
def locked_server(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("locked")
    with serving(folder, "--model-repository", str(models), QWEN3_TTS_API_KEY=KEY) as server:
        yield server


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Open a server's page once it has found the voices; at the end it had no error and asked no other host."""
    context = chromium.new_context(accept_downloads=True, viewport={"width": 900, "height": 900})
    context.set_default_timeout(LIMIT_MS)
    troubles: list[str] = []
    asked: list[str] = []
    origins: list[str] = []

    def go(server: Serving | str, voices: int | None = None) -> Page:
        url = server if isinstance(server, str) else server.url
        listed = voices or len(httpx.get(f"{url}/v1/audio/voices").json()["voices"])
        origins.append(url.removeprefix("http://").rstrip("/"))
        page = context.new_page()
        page.add_init_script(LISTEN)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda told: troubles.append(told.text) if "Content Security Policy" in told.text else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        expect(page.locator("#voice option")).to_have_count(listed, timeout=LIMIT_MS)
        return page

    yield go
    context.close()
    assert troubles == []
    hosts = {url.split("/")[2] for url in asked if not url.startswith(("blob:", "data:"))}
    assert hosts <= {*origins}


@pytest.fixture
def page(visit: Callable[[Serving], Page], open_server: Serving) -> Page:
    return visit(open_server)


@pytest.fixture
def locked(visit: Callable[[Serving], Page], locked_server: Serving) -> Page:
    return visit(locked_server)


def wait_state(page: Page, state: str) -> None:
    expect(page.locator("body")).to_have_attribute("data-state", state, timeout=LIMIT_MS)


def wait_frames(page: Page, count: int) -> None:
    """Until the loudspeaker was given so many. (Playwright's own wait needs eval, which the page forbids.)"""
    script = "window.heard.reduce((sum, piece) => sum + piece.samples.length, 0)"
    wait_for(lambda: page.evaluate(script) >= count * SAMPLES_PER_FRAME)


def heard(page: Page) -> npt.NDArray[np.int16]:
    """All samples that the loudspeaker was given, which must follow each other without a gap."""
    pieces = page.evaluate("window.heard")
    for piece, following in itertools.pairwise(pieces):
        end = piece["when"] + len(piece["samples"]) / piece["rate"]
        assert following["when"] >= end - 1e-6
    assert {(piece["rate"], piece["context"]) for piece in pieces} <= {(24000, 24000)}
    return np.array([sample for piece in pieces for sample in piece["samples"]], np.int16)


def numbers(samples: npt.NDArray[np.int16]) -> list[int]:
    """The numbers of the frames in the sound."""
    frames = samples.reshape(-1, SAMPLES_PER_FRAME)
    return [round((int(frame.max()) - LOUDNESS) / STEP) for frame in frames]


def running(server: Serving) -> float:
    """Streams that the server has."""
    text = httpx.get(f"{server.url}/metrics").text
    (value,) = re.findall(r"^qwen3_tts_proxy_active_streams (\S+)$", text, re.MULTILINE)
    return float(value)


def saved(download: Download) -> bytes:
    return Path(download.path()).read_bytes()


def test_the_page_lets_nothing_in_from_elsewhere(open_server: Serving) -> None:
    for path in ("/", "/page/app.js", "/page/player.js", "/page/voices.js", "/page/style.css"):
        answer = httpx.get(open_server.url.rstrip("/") + path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert set(re.findall(r"\w+://[\w.]+", answer.text)) <= {"http://www.w3.org"}  # SVG's name, not a place


def test_a_text_is_heard_while_it_is_made(page: Page, open_server: Serving) -> None:
    page.fill("#text", "frames=12 stall=11")
    page.click("#speak")
    wait_state(page, "speaking")
    wait_frames(page, 11)  # though the last one is held back
    assert numbers(heard(page)) == list(range(11))
    expect(page.locator("#first")).to_have_text(re.compile(r"^\d+ ms$|^\d\.\d\d s$"))
    page.keyboard.press("Escape")
    wait_state(page, "idle")
    wait_for(lambda: running(open_server) == 0)


def drawn(page: Page) -> float:
    """How much of the waveform's height is used."""
    share: float = page.evaluate("""() => {
        const canvas = document.querySelector("#wave");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const inked = (_, y) => data.slice(4 * y * canvas.width, 4 * (y + 1) * canvas.width).some((value) => value > 0);
        return Array.from({ length: canvas.height }, inked).filter((any) => any).length / canvas.height;
    }""")
    return share


def test_all_of_the_sound_arrives_with_its_numbers_and_is_drawn(page: Page) -> None:
    page.fill("#text", "frames=20 chunk=3")
    assert drawn(page) < 0.1
    page.keyboard.press("Control+Enter")
    wait_state(page, "idle")  # when it has been played to its end
    assert drawn(page) == pytest.approx((LOUDNESS + 19 * STEP) / 32768 / 0.7, abs=0.05)
    assert numbers(heard(page)) == list(range(20))
    expect(page.locator("#length")).to_have_text("1.60 s")
    expect(page.locator("#factor")).to_have_text(re.compile(r"^\d+\.\d\d$"))
    expect(page.locator("#seed")).to_have_text(re.compile(r"^\d+$"))


def test_the_fields_are_sent(page: Page) -> None:
    page.fill("#text", "frames=2")
    page.select_option("#voice", "serena")
    page.select_option("#language", "english")
    page.fill("#instructions", "Softly.")
    page.locator("#speed").fill("1")
    expect(page.locator("#speed-shown")).to_have_text("2×")
    with page.expect_request("**/v1/audio/speech") as sent:
        page.click("#speak")
    assert sent.value.post_data_json == {
        "input": "frames=2", "voice": "serena", "language": "english", "instructions": "Softly.", "speed": 2,
        "response_format": "pcm",
    }  # fmt: skip


def test_stop_ends_the_work_of_the_server(page: Page, open_server: Serving) -> None:
    page.fill("#text", "frames=3 stall=2")
    page.click("#speak")
    wait_state(page, "speaking")
    wait_for(lambda: running(open_server) == 1)
    page.click("#stop")
    wait_state(page, "idle")
    wait_for(lambda: running(open_server) == 0)
    page.fill("#text", "frames=2")
    page.click("#speak")  # and it can go on
    wait_state(page, "idle")
    expect(page.locator("#length")).to_have_text("0.16 s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("   ", "nothing to say"),
        ("refuse=1", "Too many requests are waiting."),
        ("refuse=2", "The engine is stopping."),
        ("frames=9 fail=3", "broke off"),
        ("x" * 5000, "5000 characters"),
    ],
)
def test_an_error_is_shown_and_goes_away(page: Page, text: str, message: str) -> None:
    page.fill("#text", text)
    page.click("#speak")
    expect(page.get_by_role("alert")).to_contain_text(message)
    page.fill("#text", "frames=2")
    page.click("#speak")
    wait_state(page, "idle")
    expect(page.locator("#error")).to_be_hidden()


def test_what_was_heard_is_saved_as_wav_and_as_mp3(page: Page) -> None:
    page.fill("#text", "frames=20")
    page.click("#speak")
    wait_state(page, "idle")
    with page.expect_download() as download:
        page.click("#wav")
    with wave.open(io.BytesIO(saved(download.value))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24000)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert np.array_equal(samples, heard(page))
    seed = page.locator("#seed").inner_text()
    with page.expect_request("**/v1/audio/speech") as sent, page.expect_download() as download:
        page.click("#mp3")
    assert f'"seed":{seed}' in (sent.value.post_data or "")
    assert download.value.suggested_filename == "speech.mp3"
    (sync,) = struct.unpack(">H", saved(download.value)[:2])
    assert sync & 0xFFE0 == 0xFFE0


def test_the_real_engines_speech_is_heard_as_it_is_over_http(visit: Callable[[Serving], Page], server: Serving) -> None:
    page = visit(server)
    page.fill("#text", "Hi there.")
    page.select_option("#voice", "serena")
    page.click("#speak")
    wait_state(page, "idle")  # when it has been played to its end
    body = {"input": "Hi there.", "voice": "serena", "seed": int(page.locator("#seed").inner_text())}
    answer = httpx.post(f"{server.url}/v1/audio/speech", json={**body, "response_format": "pcm"}, timeout=LIMIT_S)
    expected = np.frombuffer(answer.content, "<i2")
    sound = heard(page)
    assert len(sound) == len(expected) > 0
    assert np.abs(sound.astype(int) - expected).max() <= 1
    page.locator("#live").check(force=True)
    page.evaluate("window.heard = []")
    page.fill("#text", "")
    page.locator("#text").press_sequentially("One two three four. ")
    wait_frames(page, 2)  # though the text goes on
    page.keyboard.press("Escape")
    wait_state(page, "idle")


def test_live_text_is_spoken_word_by_word(page: Page, open_server: Serving) -> None:
    page.locator("#live").check(force=True)
    page.locator("#text").press_sequentially("one two thr")
    wait_frames(page, 2)  # before the text ends
    assert numbers(heard(page)) == [number_of("one"), number_of("two")]
    page.locator("#text").press_sequentially("ee four")
    page.click("#speak")
    wait_state(page, "idle")
    assert numbers(heard(page)) == [number_of(word) for word in ("one", "two", "three", "four")]
    expect(page.locator("#first")).not_to_have_text("–")
    expect(page.locator("#wav")).to_be_enabled()
    expect(page.locator("#mp3")).to_be_disabled()
    wait_for(lambda: running(open_server) == 0)


def test_stop_ends_live_text_in_the_server(page: Page, open_server: Serving) -> None:
    page.locator("#live").check(force=True)
    page.locator("#text").press_sequentially("one two ")
    wait_state(page, "speaking")
    wait_for(lambda: running(open_server) == 1)
    page.keyboard.press("Escape")
    wait_state(page, "idle")
    wait_for(lambda: running(open_server) == 0)


def test_a_failure_of_live_text_is_shown(page: Page) -> None:
    page.fill("#instructions", "fail=1")
    page.locator("#live").check(force=True)
    page.locator("#text").press_sequentially("one two three ")
    expect(page.get_by_role("alert")).to_contain_text("failed")
    wait_state(page, "error")


def test_live_text_that_was_sent_stays(page: Page) -> None:
    page.locator("#live").check(force=True)
    page.locator("#text").press_sequentially("one two ")
    wait_frames(page, 2)
    page.fill("#text", "other words ")
    expect(page.locator("#text")).to_have_value("one two ")
    expect(page.locator("#note")).to_contain_text("can't be changed")
    page.click("#speak")
    wait_state(page, "idle")
    assert numbers(heard(page)) == [number_of("one"), number_of("two")]


def give_key(page: Page, key: str) -> None:
    expect(page.locator("#ask")).to_be_visible()
    page.fill("#key", key)
    page.keyboard.press("Enter")


def test_the_key_is_asked_for_and_kept_in_the_session_alone(locked: Page) -> None:
    locked.fill("#text", "frames=3")
    locked.click("#speak")
    give_key(locked, "wrong")
    expect(locked.locator("#ask-why")).to_contain_text("didn't take")
    give_key(locked, KEY)
    wait_state(locked, "idle")
    assert numbers(heard(locked)) == [0, 1, 2]
    assert locked.evaluate("Object.values(sessionStorage)") == [KEY]
    assert locked.evaluate("localStorage.length") == 0
    locked.fill("#text", "frames=2")
    locked.click("#speak")  # without asking again
    wait_state(locked, "idle")
    expect(locked.locator("#length")).to_have_text("0.16 s")


def test_live_text_asks_for_the_key_too(locked: Page) -> None:
    locked.locator("#live").check(force=True)
    locked.click("#speak")
    give_key(locked, KEY)
    locked.locator("#text").press_sequentially("one ")
    wait_frames(locked, 1)
    locked.click("#speak")
    wait_state(locked, "idle")
    assert numbers(heard(locked)) == [number_of("one")]


def test_who_gives_no_key_is_told_why_nothing_is_spoken(locked: Page) -> None:
    locked.fill("#text", "frames=3")
    locked.click("#speak")
    expect(locked.locator("#ask")).to_be_visible()
    locked.keyboard.press("Escape")
    expect(locked.get_by_role("alert")).to_contain_text("API key")


def test_every_control_is_reached_by_keyboard_and_has_a_name(page: Page) -> None:
    page.locator("#text").focus()
    reached = []
    for _ in range(7):
        reached.append(page.evaluate("document.activeElement.id"))
        page.keyboard.press("Tab")
    assert reached == ["text", "voice", "language", "speed", "instructions", "speak", ""] or reached[:6] == [
        "text", "voice", "language", "speed", "instructions", "speak"
    ]  # fmt: skip
    page.locator("#live").focus()
    page.keyboard.press("Space")
    expect(page.locator("#live")).to_be_checked()
    for name in ("Text", "Voice", "Language", "Speed", "How to speak", "Speak as I type"):
        expect(page.get_by_label(name, exact=False).first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground_in_both_schemes(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)

    def luminance(colour: str) -> float:
        channels = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    for text, ground in [
        ("label", ".card"),
        (".soft", ".card"),
        ("#text", "#text"),
        ("#speak", "#speak"),
        ("a", "body"),
    ]:
        ink = page.locator(text).first.evaluate("(element) => getComputedStyle(element).color")
        paper = page.locator(ground).first.evaluate("(element) => getComputedStyle(element).backgroundColor")
        dark, light = sorted([luminance(ink), luminance(paper)])
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ink, paper)
