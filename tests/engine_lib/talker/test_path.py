from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_lib.errors import ConfigurationError
from engine_lib.profile import load_profile
from engine_lib.talker import path


def test_slots_that_memory_does_not_hold_are_named_with_the_settings_that_shrink_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crowded(*_: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 14.4 GiB")

    monkeypatch.setattr(path, "Runner", crowded)
    talker: Any = SimpleNamespace(codec_head=torch.nn.Linear(2, 2))
    with pytest.raises(ConfigurationError, match=r"64 streams of 2048 positions.*max_active or slot_positions.*14.4"):
        path.choose_path(talker, load_profile("ttfa"))
