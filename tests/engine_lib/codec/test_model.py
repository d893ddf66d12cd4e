from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.model import Decoder
from engine_lib.codec.runner import Runner
from engine_lib.errors import ConfigurationError
from tests.engine_lib.codec.conftest import TOKENIZER
from tests.golden import golden

TOLERANCE = 1e-4
INTERMEDIATES = {
    "c7_rvq_first": "quantizer.rvq_first",
    "c7_rvq_rest": "quantizer.rvq_rest",
    "c7_quantized": "quantizer",
    "c7_pre_conv": "pre_conv",
    "c7_pre_transformer_layer0": "pre_transformer.layers.0",
    "c7_pre_transformer": "pre_transformer",
    "c7_upsample0_transconv": "upsample.0.0",
    "c7_upsample0": "upsample.0",
    "c7_upsample1_transconv": "upsample.1.0",
    "c7_upsample1": "upsample.1",
    "c7_decoder0": "decoder.0",
    "c7_decoder1_transconv": "decoder.1.block.1",
    "c7_decoder1_unit0": "decoder.1.block.2",
    "c7_decoder1": "decoder.1",
    "c7_decoder2": "decoder.2",
    "c7_decoder3": "decoder.3",
    "c7_decoder4": "decoder.4",
    "c7_decoder5": "decoder.5",
    "c7_decoder6": "decoder.6",
}


def watched(runner: Runner, module: nn.Module, codes: np.ndarray) -> np.ndarray:
    """The output of one part of the decoder while `codes` [16, frames] are decoded from a stream's start."""
    seen: list[Tensor] = []
    handle = module.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    try:
        runner.decode_float([3], [codes.T])
    finally:
        handle.remove()
    return torch.cat(seen, dim=-1)[0].numpy()


@pytest.mark.parametrize("array", INTERMEDIATES)
def test_each_layer_equals_the_official_one(array: str, decoder: Decoder, runner: Runner) -> None:
    case = golden("codec")
    got = watched(runner, decoder.get_submodule(INTERMEDIATES[array]), case["c7_codes"])
    np.testing.assert_allclose(got, case[array], rtol=0, atol=TOLERANCE)


def test_attention_window_equals_the_official_one(decoder: Decoder, make_runner: Any) -> None:
    case = golden("codec")
    got = watched(make_runner(piece_frames=45), decoder.pre_transformer, case["c45_codes"])
    np.testing.assert_allclose(got, case["c45_pre_transformer"], rtol=0, atol=TOLERANCE)


def test_every_intermediate_of_the_golden_is_compared() -> None:
    names = {name for name in golden("codec").arrays if name.startswith("c7_")}
    assert names - set(INTERMEDIATES) == {"c7_codes", "c7_wav"}


def edited_checkpoint(folder: Path) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    directory = folder / "speech_tokenizer"
    shutil.copytree(TOKENIZER, directory)
    return directory, json.loads((directory / "config.json").read_text()), load_file(directory / "model.safetensors")


@pytest.mark.parametrize(
    "key",
    [
        "codebook_size", "codebook_dim", "num_quantizers", "latent_dim", "hidden_size", "intermediate_size",
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window",
        "rms_norm_eps", "rope_theta", "decoder_dim", "upsampling_ratios", "upsample_rates",
    ],
)  # fmt: skip
def test_config_without_a_size_fails_by_its_name(key: str, tmp_path: Path) -> None:
    directory, config, _ = edited_checkpoint(tmp_path)
    del config["decoder_config"][key]
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match=key) as caught:
        DecoderConfig.from_directory(directory)
    assert caught.value.param == key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("codebook_size", "64"), ("codebook_size", True), ("latent_dim", 0), ("latent_dim", 32.0),
        ("rope_theta", "big"), ("rms_norm_eps", -1e-5), ("upsample_rates", 8), ("upsample_rates", [8, "5"]),
        ("upsample_rates", [8, 5, 4, 4]), ("num_quantizers", 8), ("codebook_dim", 31), ("head_dim", 15),
        ("num_key_value_heads", 3), ("decoder_dim", 63), ("hidden_act", "gelu"), ("attention_bias", True),
    ],
)  # fmt: skip
def test_config_that_no_decoder_can_follow_fails_by_its_key(key: str, value: Any, tmp_path: Path) -> None:
    directory, config, _ = edited_checkpoint(tmp_path)
    config["decoder_config"][key] = value
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError) as caught:
        DecoderConfig.from_directory(directory)
    assert caught.value.param == key


@pytest.mark.parametrize(
    ("key", "value"), [("model_type", "mimi"), ("output_sample_rate", 16000), ("decoder_config", None)]
)
def test_config_of_another_model_fails_by_its_key(key: str, value: Any, tmp_path: Path) -> None:
    directory, config, _ = edited_checkpoint(tmp_path)
    config[key] = value
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError) as caught:
        Decoder.from_directory(directory, torch.float32, torch.device("cpu"))
    assert caught.value.param == key


@pytest.mark.parametrize("name", ["decoder.pre_transformer.input_proj.weight", "decoder.decoder.2.block.3.act2.beta"])
def test_missing_tensor_fails_by_its_name(name: str, tmp_path: Path) -> None:
    directory, _, tensors = edited_checkpoint(tmp_path)
    del tensors[name]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ConfigurationError, match=name):
        Decoder.from_directory(directory, torch.float32, torch.device("cpu"))


def test_misshaped_tensor_fails_by_its_name(tmp_path: Path) -> None:
    directory, _, tensors = edited_checkpoint(tmp_path)
    name = "decoder.upsample.1.1.pwconv2.weight"
    tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ConfigurationError, match=name):
        Decoder.from_directory(directory, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("name", ["decoder.upsample.2.0.conv.bias", "decoder.pre_conv.input_proj.weight"])
def test_unknown_tensor_fails_by_its_name(name: str, tmp_path: Path) -> None:
    directory, _, tensors = edited_checkpoint(tmp_path)
    tensors[name] = torch.zeros(3)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ConfigurationError, match=name):
        Decoder.from_directory(directory, torch.float32, torch.device("cpu"))
