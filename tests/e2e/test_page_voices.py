"""Voices of one's own on the page, in a real Chromium: chosen or recorded, named, spoken with, deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from proxy.settings import Settings
from tests.e2e.test_page import KEY, LIMIT_MS, chromium, visit, wait_state
from tests.proxy.test_readiness import proxy
from tests.serving import Serving
from tests.sounds import encoded, tone

__all__ = ["chromium", "visit"]  # fixtures


@pytest.fixture(params=[None, KEY])
def key(request: pytest.FixtureRequest) -> str | None:
    """What the server asks for, if anything."""
    return request.param


@pytest.fixture
def page(key: str | None, base_server: Serving, tmp_path: Path, visit: Callable[[str, int], Page]) -> Iterator[Page]:
    """The page of a proxy that has no voices yet."""
    settings = Settings(triton_urls=(base_server.triton_grpc,), api_key=key, voice_dir=tmp_path / "voices")
    with proxy(settings) as url:
        yield visit(url, 1)


def fill(page: Page, name: str, sample: Path) -> None:
    page.fill("#voice-name", name)
    page.set_input_files("#sample-file", sample)
    page.check("#consent")


def add(page: Page, key: str | None) -> None:
    """Send the sample, and give the key once it is asked for."""
    page.click("#add-voice")
    if key:
        page.fill("#key", key)  # waits until it can be seen
        page.click("#ask-form button.primary")


def test_a_sample_becomes_a_voice_that_speaks_and_can_be_deleted(page: Page, key: str | None, tmp_path: Path) -> None:
    sample = tmp_path / "sample.flac"
    sample.write_bytes(encoded(tone(3.0), container="flac", codec="flac"))
    expect(page.locator("#add-voice")).to_be_disabled()
    fill(page, "My Aunt", sample)
    add(page, key)
    expect(page.locator("#voice-note")).to_have_text("My Aunt can speak now.", timeout=LIMIT_MS)
    expect(page.locator("#voice option")).to_have_text(["My Aunt"])
    page.fill("#text", "Hi.")
    page.click("#speak")
    expect(page.locator("#first")).not_to_have_text("–", timeout=LIMIT_MS)
    page.click("#stop")
    wait_state(page, "idle")
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#delete-voice")
    expect(page.locator("#voice-note")).to_have_text("The voice is deleted.", timeout=LIMIT_MS)
    expect(page.locator("#voice option")).to_have_text(["Add a voice below"])


def test_a_recording_becomes_a_voice(page: Page, key: str | None) -> None:
    page.fill("#voice-name", "Beep")
    page.check("#consent")
    page.click("#record")
    expect(page.locator("#record")).to_have_text("Stop recording", timeout=LIMIT_MS)
    expect(page.locator("#voice-note")).to_contain_text("Recording, 2 s", timeout=LIMIT_MS)
    page.click("#record")
    expect(page.locator("#sample")).to_be_visible(timeout=LIMIT_MS)
    add(page, key)
    expect(page.locator("#voice-note")).to_have_text("Beep can speak now.", timeout=LIMIT_MS)


def test_what_the_server_says_of_a_bad_sample_is_shown(page: Page, key: str | None, tmp_path: Path) -> None:
    sample = tmp_path / "sample.wav"
    sample.write_bytes(b"nothing")
    fill(page, "Nobody", sample)
    add(page, key)
    expect(page.locator("#voice-note")).to_contain_text("can be read", timeout=LIMIT_MS)
    expect(page.locator("#voice option")).to_have_text(["Add a voice below"])
