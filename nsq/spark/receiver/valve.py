"""How much a receiver may have in flight: everything, one message to test the waters, or nothing.

Whoever has a reason to stop the flow gives it, and takes it back; the flow goes on when no reason is left.
Knows no consumer: ``apply`` is told the window.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Valve:
    """For any thread."""

    def __init__(self, full: int, apply: Callable[[int], None]) -> None:
        self._full = full
        self._apply = apply
        # Held while the window is applied, too: that only queues RDYs, and orders that overtake each other
        # would leave a window that no reason asks for.
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}
        self._testing = False
        self._window = full

    @property
    def why(self) -> str:
        """Why nothing may come, for people; empty when it may."""
        return "; ".join(list(self._reasons.values()))

    @property
    def window(self) -> int:
        return self._window

    def shut(self, about: str, why: str) -> None:
        with self._lock:
            self._reasons[about] = why
            self._adjust()

    def open(self, about: str) -> None:
        """That reason is gone."""
        with self._lock:
            self._reasons.pop(about, None)
            self._adjust()

    def test(self, testing: bool) -> None:
        """One message at a time, until it is known that all is well again."""
        with self._lock:
            self._testing = testing
            self._adjust()

    def _adjust(self) -> None:
        window = 0 if self._reasons else min(1, self._full) if self._testing else self._full
        if window != self._window:
            self._window = window
            self._apply(window)
