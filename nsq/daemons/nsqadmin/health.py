"""Describes problems of a topic, a channel or an nsqd. Pure."""

from __future__ import annotations

from typing import NamedTuple

FINE, NOTICE, BAD = 0, 1, 2

#: The least growth that is a problem, in messages per second and as a share of the depth per minute.
_GROWING, _SHARE = 1.0, 0.01
#: The share of requeues among finished messages from which on they are mentioned.
_REQUEUED = 0.1
#: Seconds without a reply from which on an upstream is slow; pages poll every 2 s.
_SLOW = 3.0
_TIMES = ((86400 * 365.0, "years"), (86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


class Health(NamedTuple):
    level: int
    text: str


class ChannelState(NamedTuple):
    """A channel's figures; rates are per second. ``room``: messages that still fit into memory, if known."""

    depth: int = 0
    in_flight: int = 0
    clients: int = 0
    paused: bool = False
    growth: float = 0.0
    finished: float = 0.0
    requeued: float = 0.0
    timed_out: float = 0.0
    dropped: float = 0.0
    room: int | None = None


def of_channel(state: ChannelState) -> Health:
    if state.dropped > 0:
        return _dropping(state.dropped)
    if state.paused:
        return Health(BAD if state.depth else NOTICE, _with_waiting("paused", state.depth))
    if not state.clients:
        return Health(BAD if state.depth else NOTICE, _with_waiting("no consumers", state.depth))
    if state.depth and not state.in_flight and state.finished < 0.05:
        return Health(BAD, _with_waiting("consumers take nothing: backing off, or not ready", state.depth))
    if state.timed_out >= 0.05:
        return Health(BAD, f"a client times out: {_rate(state.timed_out)} messages are sent again")
    if state.growth >= _GROWING and state.growth * 60 >= state.depth * _SHARE:
        return Health(BAD, f"depth grows by {_rate(state.growth)}{_until_full(state)}")
    if state.requeued >= 0.05 and state.requeued > _REQUEUED * max(state.finished, state.requeued):
        return Health(NOTICE, f"clients requeue {_rate(state.requeued)}")
    return Health(FINE, "fine")


def of_topic(
    *, depth: int, paused: bool, channels: list[Health], nodes: int, dropping: float = 0.0
) -> Health:
    """Judge a topic; ``channels`` are the healths of its channels, of which the worst one counts."""
    if not nodes:
        return Health(NOTICE, "no nsqd has it now; nsqlookupd remembers it")
    if dropping > 0:
        return _dropping(dropping)
    if paused:
        return Health(BAD if depth else NOTICE, _with_waiting("paused", depth))
    if not channels:
        return Health(BAD if depth else NOTICE, _with_waiting("no channel", depth))
    return max(channels, key=lambda health: health.level)


def of_node(*, error: str, silent: float, listed: bool, health: str, outdated: bool) -> Health:
    """Judge an nsqd. ``silent``: seconds without a reply. ``listed``: whether an nsqlookupd lists it."""
    if not listed:
        return Health(BAD, "gone: no nsqlookupd lists it any more")
    if error:
        return Health(BAD, f"does not answer: {error}")
    if of_silence(silent):
        return Health(BAD, of_silence(silent))
    if health != "OK":
        return Health(BAD, health)
    return Health(NOTICE, "an older version than others") if outdated else Health(FINE, "fine")


def of_silence(seconds: float) -> str:
    """Judge an upstream without a reply for so many seconds; empty if that is not long."""
    return "slow: it does not answer in time" if seconds >= _SLOW else ""


def _dropping(rate: float) -> Health:
    return Health(BAD, f"drops messages: {_rate(rate)}, as too many wait (--max-channel-depth)")


def span(seconds: float) -> str:
    for size, unit in _TIMES:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return "0 s"


def _with_waiting(text: str, depth: int) -> str:
    if not depth:
        return text
    return f"{text}: {depth:,} {'message waits' if depth == 1 else 'messages wait'}"


def _rate(per_second: float) -> str:
    if per_second >= 1.0:
        return f"{per_second:,.0f}/s"
    return f"{per_second * 60:,.0f}/min"


def _until_full(state: ChannelState) -> str:
    if state.room is None:
        return ""
    if state.room <= 0:
        return ", on disk already"
    return f": memory is full in {span(state.room / state.growth)}, then it goes to disk"
