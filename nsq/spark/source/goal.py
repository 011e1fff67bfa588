"""When a run with trigger(availableNow=True) has read what was there when it began. Pure: time is an
argument.
"""

from __future__ import annotations

from nsq.spark.source.backlog import Backlog


class Goal:
    """So many rows, whichever they are: a queue has no end that could be remembered, and gives new messages
    out beside old ones. A producer that goes on therefore cannot keep the run from ending, and neither can
    messages that somebody else took, which never come.
    """

    def __init__(self, rows: int | None, now: float, *, idle: float, timeout: float, with_held: bool) -> None:
        self.rows = rows
        self.taken = 0
        self._began = now
        self._idle = idle
        self._timeout = timeout
        self._with_held = with_held
        self._seen = 0
        self._quiet_since = now

    @property
    def left(self) -> int | None:
        """None where nobody could tell how many there are: then silence is the end."""
        return None if self.rows is None else max(0, self.rows - self.taken)

    def look(self, now: float, pending: int, ready: bool) -> None:
        """``pending`` rows have come and are not taken yet. Nothing is missed before we are ``ready``."""
        seen = self.taken + pending
        if seen != self._seen or not ready:
            self._seen, self._quiet_since = seen, now

    def verdict(self, now: float, pending: int, backlog: Backlog | None, measured: float) -> str:
        """Why the run is over; empty while it is not. At ``measured`` nsqd was asked for its ``backlog``."""
        if self.left == 0:
            return f"read all {self.rows} rows that there were"
        missing = f"read {self.taken} rows" + (f", {self.left} did not come" if self.rows else "")
        if self._timeout and now - self._began >= self._timeout:
            return f"{missing} within availableNowTimeout={self._timeout:g}s{_where(backlog)}"
        if pending:
            return ""  # they become a batch first
        if now - self._quiet_since < self._idle or self._may_come(backlog, measured):
            return ""
        return f"{missing}: nothing came for {now - self._quiet_since:.1f} s{_where(backlog)}"

    def _may_come(self, backlog: Backlog | None, measured: float) -> bool:
        if backlog is None:
            return False
        if backlog.asked and measured < self._quiet_since:
            return True  # that is old news; the next answer decides
        return not backlog.paused and backlog.waiting(self._with_held) > 0


def _where(backlog: Backlog | None) -> str:
    if backlog is None or not backlog.asked:
        return "; no nsqd told its depth"
    paused = ", the channel is paused" if backlog.paused else ""
    held = f"{backlog.in_flight} in flight, {backlog.deferred} deferred"
    return f"; nsqd has {backlog.depth} waiting, {held}{paused}"
