"""Heartbeats out, and the deadline by which the client must have said something."""

from __future__ import annotations

from collections.abc import Callable

from nsq.daemons.nsqd.core.clock import Alarm, Clock

#: A client that sent no command for this many heartbeat intervals is gone.
_SILENT_INTERVALS = 2


class Liveness:
    """Two alarms. ``heard`` is called for every chunk, so it only notes the time; the alarm looks
    when it rings.
    """

    def __init__(self, clock: Clock, *, beat: Callable[[], None], silent: Callable[[], None]) -> None:
        self._clock = clock
        self._beat = beat
        self._silent = silent
        self._interval = 0.0
        self._next_beat = 0.0
        self._heard_at = clock.now()
        self._beat_alarm = Alarm(clock, self._on_beat)
        self._silence_alarm = Alarm(clock, self._on_silence)

    def start(self, interval: float) -> None:
        """Begin, or begin anew, with this many seconds between heartbeats; 0 stops both watches."""
        self.stop()
        self._interval = interval
        if interval <= 0:
            return
        self._heard_at = self._clock.now()
        self._next_beat = self._heard_at + interval
        self._beat_alarm.set(self._next_beat)
        self._silence_alarm.set(self._heard_at + _SILENT_INTERVALS * interval)

    def heard(self) -> None:
        self._heard_at = self._clock.now()

    def excuse(self) -> None:
        """Wait anew: the client was silent because nobody listened."""
        self.heard()
        self._silence_alarm.set(self._heard_at + _SILENT_INTERVALS * self._interval)

    def stop(self) -> None:
        self._beat_alarm.cancel()
        self._silence_alarm.cancel()

    def _on_beat(self) -> None:
        # From the last one that was due: lateness must not add up.
        self._next_beat = max(self._next_beat + self._interval, self._clock.now())
        self._beat_alarm.set(self._next_beat)
        self._beat()

    def _on_silence(self) -> None:
        deadline, now = self._heard_at + _SILENT_INTERVALS * self._interval, self._clock.now()
        if deadline > now:
            self._silence_alarm.set(deadline)
            return
        if self._next_beat <= now:
            # Due a moment earlier; two alarms of one millisecond may ring in either order.
            self._beat_alarm.cancel()
            self._on_beat()
        self._silent()
