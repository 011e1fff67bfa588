"""The receivers of a query as the feed sees them: a crew, or nobody when ``receivers=0`` leaves receiving to
``nsq-spark receive`` on other hosts. Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nsq.spark.receiver.crew import Crew
from nsq.spark.source.admission import Amount
from nsq.spark.source.feed import State

#: While there is news already, this often it is looked whether there is enough of it.
_LOOK = 0.05


class OwnReceivers:
    """Raises, from ``state``, what makes all waiting futile: settings that nsqd refuses, for one."""

    def __init__(self, crew: Crew, count: int, nap: Callable[[float], None] = time.sleep) -> None:
        self._crew = crew
        self._count = count
        self._nap = nap

    def start(self) -> None:
        self._crew.start()

    def state(self) -> State:
        if self._crew.fault is not None:
            raise self._crew.fault
        now = self._crew.status()
        return State(
            ready=now.alive == self._count,
            connected=now.connections > 0,
            received=now.received,
            open=Amount(now.open_rows, now.open_bytes),
            sealed=now.sealed,
            paused="; ".join(now.paused),
        )

    def received(self) -> int:
        """For any thread."""
        return self._crew.status().received

    def wait(self, seconds: float) -> None:
        began = time.monotonic()
        if self._crew.wait(seconds) and time.monotonic() - began < _LOOK:
            self._nap(min(_LOOK, seconds))  # it was no news

    def roll(self, patience: float) -> None:
        self._crew.roll(patience)

    def stop(self) -> None:
        self._crew.stop()


class NoReceivers:
    """Segments appear in the log; how, is somebody else's business."""

    def __init__(self, nap: Callable[[float], None] = time.sleep) -> None:
        self._nap = nap

    def start(self) -> None:
        pass

    def state(self) -> State:
        return State()

    def received(self) -> int:
        return 0

    def wait(self, seconds: float) -> None:
        self._nap(seconds)

    def roll(self, patience: float) -> None:
        pass

    def stop(self) -> None:
        pass
