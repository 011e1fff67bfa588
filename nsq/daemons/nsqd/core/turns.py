"""Long work cut into portions, so that it never keeps the event loop from everybody else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Portion = Callable[[], None]


class Turns:
    """One portion each time the loop comes round, whoever it is for: all that have work take turns."""

    def __init__(self, call_soon: Callable[[Portion], object]) -> None:
        self._call_soon = call_soon
        self._waiting: deque[Portion] = deque()
        self._asked = False

    def ask(self, portion: Portion) -> None:
        """Call once, on another turn. Whoever has more to do by then asks again."""
        self._waiting.append(portion)
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting and not self._asked:
            self._asked = True
            self._call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._asked = False
        portion = self._waiting.popleft()
        try:
            portion()
        finally:
            self._go_on()
