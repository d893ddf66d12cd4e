"""A set of names that remembers only so many: for what must be known a while, not for ever."""

from __future__ import annotations

from collections import OrderedDict


class RecentNames:
    """The last `most` names added. Not thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._names: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> bool:
        """Remember `name`. False when it was known already."""
        known = name in self._names
        self._names[name] = None
        if len(self._names) > self._most:
            self._names.popitem(last=False)
        return not known

    def discard(self, name: str) -> bool:
        """Forget `name`. False when it wasn't known."""
        known = name in self._names
        self._names.pop(name, None)
        return known
