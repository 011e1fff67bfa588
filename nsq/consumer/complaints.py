"""What is amiss is said once, and again only when it changes or comes back. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class Complaints:
    """Remembers, of everything that can go wrong, what was said of it last."""

    def __init__(self) -> None:
        self._said: dict[Hashable, str] = {}

    def is_news(self, about: Hashable, text: str) -> bool:
        """Whether this differs from what was said last; it is taken as said from now on."""
        if self._said.get(about) == text:
            return False
        self._said[about] = text
        return True

    def settle(self, about: Hashable) -> bool:
        """It is well again; whether anything had been said."""
        return self._said.pop(about, None) is not None
