"""The real server, whole, once for all end-to-end tests of a session."""

from collections.abc import Iterator

import pytest

from tests.golden import BASE
from tests.serving import CHECKPOINT, Serving, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`serve` over the small checkpoint. Its end checks that nothing is left of it."""
    with serving(tmp_path_factory.mktemp("serve"), "--model", str(CHECKPOINT)) as started:
        yield started


@pytest.fixture(scope="session")
def base_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The same over the small Base checkpoint, which speaks in cloned voices."""
    folder = tmp_path_factory.mktemp("voices")
    with serving(folder, "--model", str(BASE), QWEN3_TTS_VOICE_DIR=str(folder / "kept")) as started:
        yield started
