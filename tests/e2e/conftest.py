"""The real server, whole, once for all end-to-end tests of a session."""

from collections.abc import Iterator

import pytest

from tests.serving import CHECKPOINT, Serving, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`serve` over the small checkpoint. Its end checks that nothing is left of it."""
    with serving(tmp_path_factory.mktemp("serve"), "--model", str(CHECKPOINT)) as started:
        yield started
