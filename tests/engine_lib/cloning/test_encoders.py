"""Both encoders against the official implementation, in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine_lib.cloning.codec_encoder import CodecEncoder
from engine_lib.cloning.speaker_encoder import SpeakerEncoder
from tests.golden import BASE, Golden, golden

CPU = torch.device("cpu")


def close(actual: torch.Tensor, expected: np.ndarray, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def case() -> Golden:
    return golden("clone_frontend")


@pytest.fixture(scope="module")
def speaker() -> SpeakerEncoder:
    return SpeakerEncoder.from_directory(BASE, CPU)


@pytest.fixture(scope="module")
def encoder() -> CodecEncoder:
    return CodecEncoder.from_directory(BASE / "speech_tokenizer", CPU)


@torch.inference_mode()
def test_the_mel_spectrogram_equals_the_official_one(speaker: SpeakerEncoder, case: Golden) -> None:
    close(speaker.mel(torch.from_numpy(case["ref_audio"])), case["mel"])


@torch.inference_mode()
def test_every_stage_of_the_speaker_encoder_equals_the_official_one(speaker: SpeakerEncoder, case: Golden) -> None:
    stages: dict[str, torch.Tensor] = {}
    places = {"spk_block0": speaker.blocks[0], "spk_block3": speaker.blocks[3], "spk_mfa": speaker.mfa}
    places["spk_asp"] = speaker.asp
    for name, module in places.items():
        module.register_forward_hook(lambda _, __, out, name=name: stages.__setitem__(name, out[0]))
    close(speaker(torch.from_numpy(case["ref_audio"])), case["x_vector"])
    for name in places:
        close(stages[name], case[name])


@torch.inference_mode()
def test_every_stage_of_the_codec_encoder_equals_the_official_one(encoder: CodecEncoder, case: Golden) -> None:
    seen = encoder.encoder(torch.from_numpy(case["ref_audio"])[None, None])
    close(seen[0], case["enc_seanet"])
    known = encoder.encoder_transformer(seen[0].T)
    close(known, case["enc_transformer"])
    close(encoder.downsample(known.T[None])[0], case["enc_downsample"])


@pytest.mark.parametrize(("samples", "name"), [(None, "ref_codes"), (24_700, "single_codes_short")])
@torch.inference_mode()
def test_codes_equal_the_official_ones(encoder: CodecEncoder, case: Golden, samples: int | None, name: str) -> None:
    codes = encoder(torch.from_numpy(case["ref_audio"][:samples]))
    np.testing.assert_array_equal(codes.numpy(), case[name])
