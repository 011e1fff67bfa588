"""Negotiates the terms of a connection from IDENTIFY, and watches its heartbeats. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqd.core.channel import ANYWHERE, REGION_LOCAL, ZONE_LOCAL
from nsq.daemons.nsqd.core.clock import Alarm, Clock
from nsq.daemons.nsqd.options import TOPOLOGY_AWARE, NsqdOptions
from nsq.daemons.nsqd.session.stream import Refused
from nsq.wire.identify import IdentifyReply, IdentifyRequest

DEFAULT_HEARTBEAT = 30.0
DEFAULT_OUTPUT_BUFFER = 16 * 1024
_DEFAULT_DEFLATE_LEVEL = 6


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The negotiated terms of one connection. Times are seconds; a heartbeat of 0 means none."""

    msg_timeout: float
    heartbeat: float = DEFAULT_HEARTBEAT
    output_buffer_size: int = DEFAULT_OUTPUT_BUFFER
    output_buffer_timeout: float = 0.25
    sample_rate: int = 0
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = _DEFAULT_DEFLATE_LEVEL
    locality: int = ANYWHERE

    @staticmethod
    def initial(options: NsqdOptions) -> Agreement:
        """Return the terms before IDENTIFY."""
        return Agreement(msg_timeout=options.msg_timeout, output_buffer_timeout=options.output_buffer_timeout)


def negotiate(request: IdentifyRequest, options: NsqdOptions) -> Agreement:
    """Return the granted terms. Raises ``Refused`` for the first invalid field, in the order of Go's nsqd."""
    heartbeat = _heartbeat(request.heartbeat_interval, options)
    size, timeout = _output_buffer(request, options)
    if not 0 <= request.sample_rate <= 99:
        raise _invalid("sample rate", request.sample_rate)
    msg_timeout = _msg_timeout(request.msg_timeout, options)
    if not request.feature_negotiation:
        return Agreement(
            heartbeat=heartbeat,
            output_buffer_size=size,
            output_buffer_timeout=timeout,
            sample_rate=request.sample_rate,
            msg_timeout=msg_timeout,
            locality=_locality(request, options),
        )
    deflate, snappy = options.deflate and request.deflate, options.snappy and request.snappy
    if deflate and snappy:
        raise Refused("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    level = request.deflate_level if deflate and request.deflate_level > 0 else _DEFAULT_DEFLATE_LEVEL
    return Agreement(
        heartbeat=heartbeat,
        output_buffer_size=size,
        output_buffer_timeout=timeout,
        sample_rate=request.sample_rate,
        msg_timeout=msg_timeout,
        tls=bool(options.tls_cert) and request.tls_v1,
        deflate=deflate,
        deflate_level=min(level, options.max_deflate_level),
        snappy=snappy,
        locality=_locality(request, options),
    )


def reply_to(agreement: Agreement, options: NsqdOptions, *, draining: bool = False) -> IdentifyReply:
    return IdentifyReply(
        max_rdy_count=options.max_rdy_count,
        version=COMPATIBLE_VERSION,
        max_msg_timeout=_milliseconds(options.max_msg_timeout),
        msg_timeout=_milliseconds(agreement.msg_timeout),
        tls_v1=agreement.tls,
        deflate=agreement.deflate,
        deflate_level=agreement.deflate_level,
        max_deflate_level=options.max_deflate_level,
        snappy=agreement.snappy,
        sample_rate=agreement.sample_rate,
        auth_required=bool(options.auth_http_addresses),
        output_buffer_size=agreement.output_buffer_size,
        output_buffer_timeout=_milliseconds(agreement.output_buffer_timeout),
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
        exiting_not_stored=True,
        draining=draining,
    )


def _heartbeat(asked: int, options: NsqdOptions) -> float:
    if asked == -1:
        return 0.0
    if asked == 0:
        return DEFAULT_HEARTBEAT
    if not 1000 <= asked <= _milliseconds(options.max_heartbeat_interval):
        raise _invalid("heartbeat interval", asked)
    return asked / 1000


def _output_buffer(request: IdentifyRequest, options: NsqdOptions) -> tuple[int, float]:
    """Return size and timeout; a requested size of -1 turns off buffering and the timeout."""
    size, timeout = DEFAULT_OUTPUT_BUFFER, options.output_buffer_timeout
    asked = request.output_buffer_timeout
    if asked == -1:
        timeout = 0.0
    elif asked:
        shortest = _milliseconds(options.min_output_buffer_timeout)
        if not shortest <= asked <= _milliseconds(options.max_output_buffer_timeout):
            raise _invalid("output buffer timeout", asked)
        timeout = asked / 1000
    asked = request.output_buffer_size
    if asked == -1:
        size, timeout = 1, 0.0
    elif asked:
        if not 64 <= asked <= options.max_output_buffer_size:
            raise _invalid("output buffer size", asked)
        size = asked
    return size, timeout


def _msg_timeout(asked: int, options: NsqdOptions) -> float:
    if asked == 0:
        return options.msg_timeout
    if not 1000 <= asked <= _milliseconds(options.max_msg_timeout):
        raise _invalid("msg timeout", asked)
    return asked / 1000


def _locality(request: IdentifyRequest, options: NsqdOptions) -> int:
    """Compare the client's zone and region with ours. Empty names never match."""
    if TOPOLOGY_AWARE not in options.experiments:
        return ANYWHERE
    if options.topology_zone and request.topology_zone == options.topology_zone:
        return ZONE_LOCAL
    if options.topology_region and request.topology_region == options.topology_region:
        return REGION_LOCAL
    return ANYWHERE


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _invalid(what: str, value: int) -> Refused:
    return Refused("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


#: A client that sent no command for this many heartbeat intervals is disconnected.
_SILENT_INTERVALS = 2


class Liveness:
    """Sends heartbeats and detects silence. The session sets ``heard_at``; a timer compares it later."""

    def __init__(self, clock: Clock, *, beat: Callable[[], None], silent: Callable[[], None]) -> None:
        self._clock = clock
        self._beat = beat
        self._silent = silent
        self._interval = 0.0
        self._next_beat = 0.0
        self.heard_at = clock.now()
        self._beat_alarm = Alarm(clock, self._on_beat)
        self._silence_alarm = Alarm(clock, self._on_silence)

    def start(self, interval: float) -> None:
        """Start, or restart, with ``interval`` seconds between heartbeats; 0 stops both timers."""
        self.stop()
        self._interval = interval
        if interval <= 0:
            return
        self.heard_at = self._clock.now()
        self._next_beat = self.heard_at + interval
        self._beat_alarm.set(self._next_beat)
        self._silence_alarm.set(self.heard_at + _SILENT_INTERVALS * interval)

    def restart_silence(self) -> None:
        """Restart the silence timer: the session did not read from the client."""
        self.heard_at = self._clock.now()
        self._silence_alarm.set(self.heard_at + _SILENT_INTERVALS * self._interval)

    def stop(self) -> None:
        self._beat_alarm.cancel()
        self._silence_alarm.cancel()

    def _on_beat(self) -> None:
        # Count from the last due time, so that delays do not add up.
        self._next_beat = max(self._next_beat + self._interval, self._clock.now())
        self._beat_alarm.set(self._next_beat)
        self._beat()

    def _on_silence(self) -> None:
        deadline, now = self.heard_at + _SILENT_INTERVALS * self._interval, self._clock.now()
        if deadline > now:
            self._silence_alarm.set(deadline)
            return
        if self._next_beat <= now:
            # The heartbeat is due first; two timers within one millisecond may fire in either order.
            self._beat_alarm.cancel()
            self._on_beat()
        self._silent()
