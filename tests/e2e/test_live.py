"""Live text on the real Triton and engine through plain gRPC: the whole text's codes, and sound before its end."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as grpc

from tests.e2e.triton import Session, ask
from tests.serving import Serving

TEXT = "She said she would be here by noon, and so she was; it is a rather long sentence that we speak word by word."


class LiveSession(Session):
    """A session that writes a text while it is spoken."""

    def turn(self, action: str, stream_id: str, sequence: int, words: str = "") -> None:
        number = grpc.InferInput("SEQUENCE", [1], "INT32")
        number.set_data_from_numpy(np.array([sequence], np.int32))
        self.request("talker", f"{action}-{sequence}", None, number, ACTION=action, STREAM_ID=stream_id, TEXT=words)


@pytest.mark.parametrize("model", ["talker", "tts"])
def test_live_text_speaks_before_it_ends_and_says_what_the_whole_text_says(model: str, server: Serving) -> None:
    options = {"seed": 8, "max_new_tokens": 80, "non_streaming_mode": False}
    expected = ask(server.triton_grpc, model, TEXT, mask_eos_until_text_end=True, **options)
    words = [f"{word} " for word in TEXT.split()]
    words[-1] = words[-1].rstrip()
    with LiveSession(server.triton_grpc) as session:
        session.start_live(model, "live", **options)
        for sequence, word in enumerate(words[: len(words) // 2]):
            session.turn("append", "live", sequence, word)
        while session.receive()[0] != "speech":  # sound, with half of the text still to be written
            pass
        for sequence, word in enumerate(words[len(words) // 2 :], len(words) // 2):
            session.turn("append", "live", sequence, word)
        session.turn("end", "live", len(words))
        heard = session.finish()["speech"]
    assert heard.reason == expected.reason
    if model == "talker":
        np.testing.assert_array_equal(heard.codes, expected.codes)
    else:
        assert len(heard.pcm) == len(expected.pcm)
        assert np.abs(heard.pcm.astype(int) - expected.pcm).max() <= 1
