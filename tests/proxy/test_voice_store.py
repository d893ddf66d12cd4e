"""Voices in a folder: kept across processes, bounded, and never found by a path."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from engine_lib.errors import InvalidRequest
from engine_lib.wire import Description, Voice
from proxy.voice_routes import listed
from proxy.voice_store import StoredVoice, VoiceStore, check_name, new_id

NAMES_REFUSED = [
    "",
    " ",
    "--",
    "../../etc/passwd",
    "..\\windows",
    "/etc/passwd",
    "a/b",
    ".hidden",
    "..",
    "a\x00b",
    "a\nb",
    "a\u202eb",
    "\ud800",
    "<script>",
    "$(reboot)",
    "%2e%2e",
    "a" * 65,
    "a:b",
    "a|b",
    "*",
]


def made(name: str = "Aunt", owner: str = "", model: str = "m", frames: int = 3) -> StoredVoice:
    dice = np.random.default_rng(0)
    codes = dice.integers(0, 64, (frames, 16), np.int32)
    voice = Voice(dice.normal(size=48).astype(np.float32), codes, "Hello." if frames else "")
    return StoredVoice(new_id(), name, owner, model, 1_700_000_000, "cons_1", voice)


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path / "voices", 5)


@pytest.mark.parametrize("frames", [0, 3])
def test_a_voice_survives_its_process(frames: int, store: VoiceStore, tmp_path: Path) -> None:
    kept = made(frames=frames)
    store.add(kept, None)
    found = VoiceStore(tmp_path / "voices", 5).find("aunt", None, "m")
    assert found
    np.testing.assert_array_equal(found.voice.x_vector, kept.voice.x_vector)
    np.testing.assert_array_equal(found.voice.codes, kept.voice.codes)
    facts = ("id", "name", "owner", "model", "created_at", "consent")
    assert [getattr(found, fact) for fact in facts] == [getattr(kept, fact) for fact in facts]
    assert found.voice.text == kept.voice.text


def test_processes_that_share_a_folder_see_each_others_voices(store: VoiceStore, tmp_path: Path) -> None:
    other = VoiceStore(tmp_path / "voices", 5)
    assert other.visible(None, "m") == []
    kept = made()
    store.add(kept, None)
    assert [stored.id for stored in other.visible(None, "m")] == [kept.id]
    assert other.delete(kept.id, None, "m")
    assert store.visible(None, "m") == []


@pytest.mark.parametrize("name", ["Aunt", "aunt", " A-u_n t "])
def test_a_name_is_given_once_however_it_is_written(name: str, store: VoiceStore) -> None:
    store.add(made(), None)
    with pytest.raises(InvalidRequest) as caught:
        store.add(made(name), None)
    assert (caught.value.param, caught.value.code) == ("name", "name_taken")


def test_only_so_many_voices_are_kept(store: VoiceStore) -> None:
    for number in range(5):
        store.add(made(f"Voice {number}"), None)
    with pytest.raises(InvalidRequest) as caught:
        store.add(made("one more"), None)
    assert caught.value.code == "too_many_voices"


def test_an_owner_neither_sees_nor_deletes_nor_blocks_anothers_voices(store: VoiceStore) -> None:
    mine, theirs = made(owner="me"), made(owner="them")
    store.add(mine, "me")
    store.add(theirs, "them")
    assert [stored.id for stored in store.visible("me", "m")] == [mine.id]
    assert store.find(theirs.id, "me", "m") is None
    assert not store.delete(theirs.id, "me", "m")
    assert store.find("aunt", "them", "m") is theirs


def test_a_voice_is_for_the_model_that_it_was_made_with(store: VoiceStore) -> None:
    store.add(made(model="small"), None)
    assert store.find("aunt", None, "large") is None


@pytest.mark.parametrize("name", NAMES_REFUSED)
def test_a_name_that_could_mean_something_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_name(name)
    assert caught.value.param == "name"


@pytest.mark.parametrize("name", ["Anna", "Тётя Оля", "奶奶", "जॉन", "O'Neill, Jr.", "v2_final", "José"])
def test_names_of_any_script_are_taken(name: str) -> None:
    assert check_name(f" {name} ") == name


@pytest.mark.parametrize("name", ["..", "../voice_x", "voice_../../x", "voice_" + "0" * 31, "VOICE_" + "0" * 32])
def test_no_path_is_made_of_what_is_not_an_id_of_ours(name: str, store: VoiceStore, tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    bystander = tmp_path / "x.safetensors"
    bystander.write_bytes(b"")
    assert not store.delete(name, None, "m")
    with pytest.raises(ValueError):
        store._path(name)
    assert bystander.exists()


def test_files_are_for_their_owner_alone_and_hold_the_name_inside(store: VoiceStore, tmp_path: Path) -> None:
    store.add(made(), None)
    (file,) = (tmp_path / "voices").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "aunt" not in file.name.lower()


def broken_files(folder: Path) -> None:
    """Files that look like ours by name."""
    good = VoiceStore(folder, 5)
    good.add(made("Good"), None)
    (file,) = folder.iterdir()
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    about = json.loads(data[8 : 8 + size])

    def write(header: bytes, body: bytes = data[8 + size :]) -> None:
        (folder / f"{new_id()}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)

    for field in ("format", "name", "ref_text", "created_at"):
        write(json.dumps(about | {"__metadata__": about["__metadata__"] | {field: "../x"}}).encode())
    write(b"{}")
    (folder / f"{new_id()}.safetensors").write_bytes(data[: len(data) // 2])
    (folder / f"{new_id()}.safetensors").write_bytes(b"")
    (folder / f"{new_id()}.safetensors").write_bytes(bytes(2 << 20))
    os.symlink("/etc/passwd", folder / f"{new_id()}.safetensors")
    (folder / "voice_x.safetensors").write_bytes(data)


def test_files_that_are_no_voices_are_passed_over(tmp_path: Path) -> None:
    broken_files(tmp_path)
    names = {stored.name for stored in VoiceStore(tmp_path, 5).visible(None, "m")}
    assert names == {"Good"}


def test_a_write_that_fails_leaves_nothing_behind(store: VoiceStore, tmp_path: Path, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        store.add(made(), None)
    assert list((tmp_path / "voices").iterdir()) == []
    assert store.visible(None, "m") == []


@pytest.mark.parametrize(
    ("languages", "shown"), [(["auto", "english"], "english"), (["auto", "chinese", "english"], "multilingual")]
)
def test_a_voice_speaks_the_languages_of_its_model(languages: list[str], shown: str) -> None:
    assert listed(made(), Description.model_construct(languages=languages))["language"] == shown
