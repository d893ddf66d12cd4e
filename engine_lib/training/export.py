"""Put what was trained into the official layout, in bfloat16.

    python -m engine_lib.training.export CODEC TALKER CHECKPOINT

CODEC and TALKER are the folders of those stages, CHECKPOINT is the one that the stage `words` began.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine_lib.cloning.codec_encoder import CodecEncoder
from engine_lib.cloning.config import EncoderConfig
from engine_lib.noise import random_weights
from engine_lib.talker.config import SamplingDefaults, TalkerConfig
from engine_lib.training import codec, recipe, talker
from engine_lib.training.words import write_json

SAMPLING = SamplingDefaults(temperature=0.6, subtalker_temperature=0.6, repetition_penalty=1.0)
CODEBOOK = "._codebook."


def talker_tensors(trained: dict[str, Tensor], config: TalkerConfig) -> dict[str, Tensor]:
    """The talker's, under their official names. Rows that no sequence ever used are zeros, so that they pack well."""
    used = torch.zeros(config.talker.vocabulary, 1, dtype=torch.bool)
    ids = config.ids
    controls = [ids.codec_pad, ids.codec_bos, ids.codec_eos, ids.think, ids.nothink, ids.think_bos, ids.think_eos]
    used[[*range(config.codes), *controls, *config.language_ids.values(), *config.speaker_ids.values()]] = True
    tensors = {f"talker.{name}": tensor.to(torch.bfloat16) for name, tensor in trained.items()}
    for name in ("talker.model.codec_embedding.weight", "talker.codec_head.weight"):
        tensors[name] = tensors[name] * used
    return tensors


def codec_tensors(trained: dict[str, Tensor]) -> dict[str, Tensor]:
    """The decoder's, with the entries themselves as sums of one vector each."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in trained.items():
        if name.endswith("cluster_usage"):
            tensors[name] = torch.ones_like(tensor)
        elif name.endswith("embedding_sum"):
            usage = trained[name.replace("embedding_sum", "cluster_usage")]
            tensors[name] = tensor / usage.clamp(min=1e-5)[:, None]
        elif name.startswith("decoder."):
            tensors[name] = tensor
        elif name.startswith("quantizing."):
            stack = "rvq_first" if "first_in" in name else "rvq_rest"
            tensors[f"decoder.quantizer.{stack}.input_proj.weight"] = tensor
    return {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}


def stand_in_encoder(directory: Path) -> dict[str, Tensor]:
    """A codec encoder of random weights: nobody clones with this voice, but the official package loads one."""
    with torch.device("meta"):
        encoder = CodecEncoder(EncoderConfig.from_directory(directory))
    generator = torch.Generator().manual_seed(0)
    tensors = random_weights(encoder, "encoder.", generator, torch.bfloat16)
    for name in [name for name in tensors if name.endswith("cluster_usage")]:
        tensors[name.replace("cluster_usage", "initialized")] = torch.ones(1, dtype=torch.bfloat16)
    for stack in ("semantic", "acoustic"):
        name = f"encoder.quantizer.{stack}_residual_vector_quantizer"
        shape = tensors[f"{name}.input_proj.weight"].shape  # [inner, outer, 1]
        tensors[f"{name}.output_proj.weight"] = torch.zeros(shape[1], shape[0], 1, dtype=torch.bfloat16)
    return tensors


def export(trained_codec: Path, trained_talker: Path, checkpoint: Path) -> None:
    """Write the weights and the sampling into `checkpoint`."""
    config = TalkerConfig.from_directory(checkpoint)
    write_json(checkpoint / "generation_config.json", SAMPLING.__dict__ | {"max_new_tokens": 2048})
    made = talker_tensors(load_file(trained_talker / talker.WEIGHTS), config)
    save_file(_whole(made), checkpoint / "model.safetensors", {"format": "pt"})
    folder = checkpoint / "speech_tokenizer"
    made = codec_tensors(load_file(trained_codec / codec.WEIGHTS)) | stand_in_encoder(folder)
    save_file(_whole(made), folder / "model.safetensors", {"format": "pt"})


def _whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.training.export", description=__doc__)
    parser.add_argument("codec", type=Path)
    parser.add_argument("talker", type=Path)
    parser.add_argument("checkpoint", type=Path)
    arguments = parser.parse_args()
    export(arguments.codec, arguments.talker, arguments.checkpoint)
    size = sum(path.stat().st_size for path in arguments.checkpoint.rglob("*") if path.is_file())
    print(f"{size / 1e6:.2f} MB for {' and '.join(recipe.SPEAKERS)}")


if __name__ == "__main__":
    main()
