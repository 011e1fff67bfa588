"""How full the whole log is, whoever filled it: receiving stops while it holds too much.

Listing it costs something, so that is done about once a second; in between this receiver's own appends are
added to what was found. Knows neither clock nor thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nsq.errors import WalError
from nsq.spark.receiver.valve import Valve
from nsq.spark.wal.store import Wal

log = logging.getLogger("nsq.spark.receiver")

#: Of the most it may hold: below this receiving goes on.
_RESUME_AT = 0.9
_FULL = "full"


def held_bytes(wal: Wal) -> int:
    """Bytes of all that is in the log, sealed or not."""
    return sum(segment.bytes for segment in wal.segments()) + sum(
        folder.open_bytes for folder in wal.receivers()
    )


class Gauge:
    """``look`` is for one thread, ``note`` for another one. ``appended`` counts this receiver's bytes."""

    def __init__(
        self, measure: Callable[[], int], most: int, valve: Valve, appended: Callable[[], int]
    ) -> None:
        self._measure = measure
        self._most = most
        self._valve = valve
        self._appended = appended
        self._others = 0  # what it held at the last look, without what was appended here until then
        self._said = ""  # the last error of listing it; logged once

    def look(self) -> None:
        """List the log, and stop or go on."""
        # Before listing: what is appended meanwhile counts twice until the next look, rather than not at all.
        appended = self._appended()
        try:
            found = self._measure()
        except (WalError, OSError) as error:
            if self._said != str(error):
                self._said = str(error)
                log.warning("cannot see how full the log is: %s", error)
            return
        self._said = ""
        self._others = found - appended
        if found >= self._most:
            self._shut(found)
        elif found < _RESUME_AT * self._most:
            self._valve.open(_FULL)

    def note(self) -> None:
        """Something was appended."""
        held = self._others + self._appended()
        if held >= self._most:
            self._shut(held)

    def _shut(self, held: int) -> None:
        self._valve.shut(
            _FULL, f"the log holds {held:,} bytes, of {self._most:,} at most: Spark has to catch up first"
        )
