"""SIGINT, SIGTERM and SIGHUP end the demo, but not while it starts or closes something."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """The first signal raises KeyboardInterrupt in the main thread; further ones are ignored."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._held = False

    def catch(self) -> None:
        for number in NUMBERS:
            # After nohup ignore the end of the terminal.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._arrived)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Delay signals to the end of the block: a process that is being started has no owner yet."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.number is not None:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore further signals, because everything is being closed."""
        self._held = True

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self.number is None:
            self.number = signal.Signals(number)
            if not self._held:
                raise KeyboardInterrupt
