"""What the talker keeps of prompts for those that begin alike: the keys and values of their first positions.

Before its text a prompt says who speaks and how (model.md 5.3 to 5.5), a cloned voice also what its sample says. None
of that changes from one utterance of a voice to the next, so it need run only once (known as prefix caching).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from engine_lib.talker.stream import Stream
from engine_lib.text.prompt import Prompt


@dataclass(frozen=True)
class _Kept:
    """Copies of a prefix's keys and values, each [layers, positions, ...]."""

    tensors: tuple[Tensor, ...]
    positions: int


class Prefixes:
    """The prefixes that were last used, `most_positions` together at most. For the thread that runs the model."""

    def __init__(self, keys: Tensor, values: Tensor, *, most_positions: int, multiple: int = 1) -> None:
        """`keys` and `values` of all slots, each [layers, slots, positions, ...]: what is kept is copied from and to.

        A prefix is cut to a `multiple` of positions, where results depend on how a prompt is cut.
        """
        self._stores = (keys, values)
        self._room = self._most_positions = most_positions
        self._multiple = multiple
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def fill(self, stream: Stream) -> None:
        """Begin the prompt of `stream`, in its slot, with what is kept of it."""
        key = self._key(stream.prompt)
        kept = self._kept.get(key)
        if kept is None:
            return
        self._kept.move_to_end(key)
        for store, tensor in zip(self._stores, kept.tensors, strict=True):
            store[:, stream.slot, : kept.positions].copy_(tensor)
        stream.prefilled = kept.positions

    def keep(self, stream: Stream) -> None:
        """Keep the prefix of a stream whose prompt has run, unless it is kept already or too long."""
        positions, key = self._length(stream.prompt), self._key(stream.prompt)
        if not 0 < positions <= self._most_positions or key in self._kept:
            return
        self._room -= positions
        while self._room < 0:
            _, oldest = self._kept.popitem(last=False)
            self._room += oldest.positions
        tensors = tuple(store[:, stream.slot, :positions].clone() for store in self._stores)
        self._kept[key] = _Kept(tensors, positions)

    def clear(self) -> None:
        """Forget all of them: after a failure what a slot holds means nothing."""
        self._kept.clear()
        self._room = self._most_positions

    def _length(self, prompt: Prompt) -> int:
        return prompt.before_text // self._multiple * self._multiple

    def _key(self, prompt: Prompt) -> Hashable:
        """Equal for prefixes that are equal."""
        end = self._length(prompt)
        voice = prompt.voice and (prompt.voice.x_vector.tobytes(), prompt.voice.codes.tobytes())
        return prompt.text[:end], prompt.codec[:end], prompt.side[:end], voice
