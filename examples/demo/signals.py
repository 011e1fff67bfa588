"""SIGINT, SIGTERM and SIGHUP end the demo, at a moment when it knows of everything that it has started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """The first one raises KeyboardInterrupt in the main thread; those after it change nothing."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._held = False

    def catch(self) -> None:
        for number in NUMBERS:
            # After nohup, a terminal that goes away is nothing to us.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is begun here is finished first: a process that is just being started has no owner yet."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.number is not None:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """From here on everything is being closed, which must not be cut short."""
        self._held = True

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = signal.Signals(number)
            if not self._held:
                raise KeyboardInterrupt
