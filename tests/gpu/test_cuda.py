"""The same laws on a CUDA device, at the true shapes of the 1.7B model where that matters. Run with: pytest -m gpu."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_lib.profile import load_profile
from engine_lib.talker.engine import Engine
from engine_lib.wire import StreamOptions
from tests.engine_lib.talker.conftest import Listener
from tests.engine_lib.talker.test_engine import mixed_requests, request
from tests.golden import CHECKPOINT, golden

pytestmark = pytest.mark.gpu


def engine(dtype: str) -> Engine:
    profile = dataclasses.replace(load_profile("ttfa"), talker_dtype=dtype)
    return Engine.from_checkpoint(Path(CHECKPOINT), profile, torch.device("cuda:0"), model="test")


def start(engine: Engine, text: str, options: dict) -> Listener:
    listener = Listener()
    engine.start(text, StreamOptions.model_validate(options), "", listener.deliver)
    return listener


@pytest.mark.parametrize("name", ["cv_plain_ns", "cv_plain_stream", "cv_auto_ns"])
def test_greedy_codes_on_cuda_in_float32_equal_the_official_ones(name: str) -> None:
    case = golden(name)
    opened = engine("float32")
    heard = start(opened, case.info["request"]["text"], request(case)).all()
    opened.close()
    np.testing.assert_array_equal(heard.codes, case["codes"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_codes_on_cuda_are_the_same_alone_and_beside_any_neighbours(dtype: str) -> None:
    opened = engine(dtype)
    asked = mixed_requests(40)
    together = [listener.all() for listener in [start(opened, text, options) for text, options in asked]]
    for (text, options), heard in zip(asked, together, strict=True):
        np.testing.assert_array_equal(start(opened, text, options).all().codes, heard.codes)
    opened.close()
