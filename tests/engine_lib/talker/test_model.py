"""The plain talker against the official implementation, in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.kv_cache import KVCache
from engine_lib.talker.model import Talker
from engine_lib.text.prompt import Prompt
from tests.engine_lib.talker.conftest import prompts_of
from tests.golden import Golden, checkpoint, golden, utterances

CPU = torch.device("cpu")


class Loaded:
    """A checkpoint's talker with its prompt builder."""

    def __init__(self, directory: Path) -> None:
        self.config = TalkerConfig.from_directory(directory)
        self.talker = Talker.from_directory(directory, self.config, torch.float32, CPU)
        self.prompts = prompts_of(directory)

    def prompt(self, request: dict) -> Prompt:
        voicing = self.prompts.voicing(
            voice=request.get("speaker"), language=request.get("language"), instructions=request.get("instruct")
        )
        return self.prompts.build(request["text"], voicing, streaming=not request.get("non_streaming_mode", True))

    def embedded(self, prompt: Prompt) -> torch.Tensor:
        return self.talker.prompt_embedding(torch.tensor(prompt.text), torch.tensor(prompt.codec))

    def cache(self) -> KVCache:
        sizes = self.config.talker
        return KVCache(sizes.layers, 1, 256, sizes.kv_heads, sizes.head_dim, torch.float32, CPU)

    def run(self, cache: KVCache, x: torch.Tensor, start: int) -> torch.Tensor:
        """States of `x` [width, hidden] from position `start` on."""
        positions = torch.arange(start, start + len(x))[None]
        return self.talker(x[None], cache, torch.tensor([0]), positions, start + len(x))[0]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory):
    made: dict[Path, Loaded] = {}
    folder = tmp_path_factory.mktemp("variants")

    def load(name: str) -> Loaded:
        directory = checkpoint(name, folder)
        if directory not in made:
            made[directory] = Loaded(directory)
        return made[directory]

    return load


def close(actual: torch.Tensor, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", utterances())
@torch.inference_mode()
def test_prompt_and_trailing_text_equal_the_official_ones(name: str, loaded) -> None:
    case, model = golden(name), loaded(name)
    prompt = model.prompt(case.info["request"])
    close(model.embedded(prompt), case["prompt_embeds"], 1e-5)
    trailing = prompt.trailing or (model.config.ids.tts_pad,)
    close(model.talker.text_side(torch.tensor(trailing)), case["trailing_text_hidden"], 1e-5)


@torch.inference_mode()
def test_the_small_custom_voice_model_ignores_instructions(loaded) -> None:
    case = golden("cv_0b6_instruct_ignored")
    model = loaded(case.name)
    prompt = model.prompt(case.info["request"])
    close(model.embedded(prompt), case["prompt_embeds"], 1e-5)


@pytest.mark.parametrize("name", ["cv_plain_ns", "cv_plain_stream", "cv_instruct_stream"])
@torch.inference_mode()
def test_teacher_forced_states_and_logits_equal_the_official_ones(name: str, loaded) -> None:
    case, model = golden(name), loaded(name)
    prompt = model.prompt(case.info["request"])
    codes = torch.from_numpy(case["tf_codes"])
    frames = model.talker.frame_embedding(codes)
    close(frames, case["tf_frame_embeds"], 1e-5)
    pad = model.config.ids.tts_pad
    text = [prompt.trailing[frame] if frame < len(prompt.trailing) else pad for frame in range(len(codes))]
    steps = frames + model.talker.text_side(torch.tensor(text))
    close(steps, case["tf_step_inputs"], 1e-5)
    cache = model.cache()
    prefix = model.embedded(prompt)
    states = [model.run(cache, prefix, 0)[-1:]]
    for frame in range(len(codes)):
        states.append(model.run(cache, steps[frame : frame + 1], len(prefix) + frame))
    hidden = torch.cat(states)
    close(hidden, case["tf_talker_hidden"], 1e-4)
    close(model.talker.codec_head(hidden), case["tf_talker_logits"], 1e-4)
    whole = model.run(model.cache(), torch.cat((prefix, steps)), 0)
    close(whole[len(prefix) - 1 :], case["tf_talker_hidden"], 1e-4)
    predicted: list[torch.Tensor] = []

    def teacher(group: int, logits: torch.Tensor) -> torch.Tensor:
        predicted.append(logits)
        return codes[:, group]

    model.talker.code_predictor(hidden[:-1], model.talker.model.codec_embedding(codes[:, 0]), teacher)
    close(torch.stack(predicted, dim=1), case["tf_predictor_logits"], 1e-4)


def left_padded(case: Golden, layout: str, row: int) -> np.ndarray:
    return case[f"{layout}_prompt_embeds"][row][case[f"{layout}_attention_mask"][row] == 1]


@pytest.mark.parametrize(("layout", "whole_text"), [("ns1", True), ("ns0", False)])
@torch.inference_mode()
def test_a_batch_of_two_has_the_official_prompts_row_by_row(layout: str, whole_text: bool, loaded) -> None:
    case = golden("batch2")
    model = loaded("cv_plain_ns")
    for row, request in enumerate(case.info["rows"]):
        prompt = model.prompt(request | {"non_streaming_mode": whole_text})
        close(model.embedded(prompt), left_padded(case, layout, row), 1e-5)
