"""Consuming at full speed: over the firehose, then over nsqds, which take part of the time.

Message counts differ, so that all take about as long; only rates are compared. ``server`` is the CPU use of
the firehose: if it is below 100 %, the client did not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.client.parties import (
    BARE,
    LIMIT,
    OURS,
    PEERS,
    SIZE,
    driver_of,
    firehose,
    firehose_with_tls,
    missing,
    present,
    under,
)
from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.peers.work import WARM_UP
from benchmarks.processes import Command, Server, drive
from benchmarks.usage import cpu_seconds

IN_FLIGHT = 2500
ROUNDS = 5

_OURS, _LIMIT, _PEER = 250_000, 500_000, 25_000
_SLEEPING, _SLEEPING_PEER = 3000, 500
_ONE_BY_ONE = 5000
_OVER_NSQD, _PEER_OVER_NSQD = 100_000, 15_000

_RATE = Figure("", "msg/s")
_BUSY = Figure("server", "% of a core")


def comparisons() -> Sequence[Comparison]:
    return [_fast(), _sleeping(), _one_in_flight(), _layers(), *_over_nsqds()]


def _fast() -> Comparison:
    contenders = {OURS: _consume(OURS, _OURS), BARE: _consume(BARE, _LIMIT), LIMIT: _consume(LIMIT, _LIMIT)}
    return Comparison(
        name=f"consume, 1 handler, {IN_FLIGHT:,} in flight",
        figures=(_RATE, _BUSY),
        contenders=present(contenders | {peer: _consume(peer, _PEER) for peer in PEERS}, missing(PEERS)),
        bars=(*(Bar(OURS, peer, 10) for peer in PEERS), Bar(OURS, BARE, 0.7), Bar(OURS, LIMIT, 0.35)),
        absent=missing(PEERS),
        pictured="Consume",
        rounds=ROUNDS,
    )


def _sleeping() -> Comparison:
    """Compare handlers that block for a millisecond in a way that no event loop can overlap."""
    contenders = {OURS: _consume(OURS, _SLEEPING, pause=0.001, threads=8)}
    contenders |= {peer: _consume(peer, _SLEEPING_PEER, pause=0.001) for peer in PEERS}
    return Comparison(
        name="consume, 8 handlers that block for 1 ms",
        figures=(_RATE, _BUSY),
        contenders=present(contenders, missing(PEERS)),
        bars=[Bar(OURS, peer, 7) for peer in PEERS],
        absent=missing(PEERS),
        pictured="Consume, handlers that block for 1 ms, 8 threads where there are threads",
        rounds=ROUNDS,
    )


def _one_in_flight() -> Comparison:
    """Compare one message at a time: for all parties each answer waits for a sleeping core to wake up."""
    peers = ("pynsq",)
    parties = (OURS, BARE, LIMIT, *peers)
    contenders = {party: _consume(party, _ONE_BY_ONE, max_in_flight=1) for party in parties}
    return Comparison(
        name="consume, 1 in flight",
        figures=(_RATE, _BUSY),
        contenders=present(contenders, missing(peers)),
        bars=[Bar(OURS, LIMIT, 0.7)],
        absent=missing(peers),
        rounds=ROUNDS,
    )


def _layers() -> Comparison:
    tls = {"tls": True, "tls_verify": False}
    return Comparison(
        name="consume, layers",
        figures=(_RATE, _BUSY),
        contenders={
            "plain": _consume(OURS, _OURS),
            "TLS": _consume(OURS, _OURS // 2, firehose_with_tls(), **tls),
            "snappy": _consume(OURS, _OURS // 2, snappy=True),
            "deflate": _consume(OURS, _OURS // 3, deflate=True),
        },
        bars=(Bar("TLS", "plain", 0.5), Bar("snappy", "plain", 0.4), Bar("deflate", "plain", 0.25)),
        rounds=ROUNDS,
    )


def _consume(
    party: str,
    count: int,
    command: Command | None = None,
    *,
    max_in_flight: int = IN_FLIGHT,
    **options: object,
) -> Measure:
    consume = driver_of(party)

    def load(server: Server, scale: float) -> Sequence[float]:
        messages = round(count * scale)
        used = cpu_seconds(server.pid)
        rate, *_ = consume(
            "consume", port=server.port, count=messages, max_in_flight=max_in_flight, **options
        )
        busy = (cpu_seconds(server.pid) - used) / (messages / rate)
        return [rate, busy * 100]

    return under(command or firehose(), load)


def _over_nsqds() -> Sequence[Comparison]:
    """Run without pinning to cores, as in normal use."""
    return [
        Comparison(
            name=f"consume, over {name}",
            figures=(_RATE,),
            contenders=present(
                {
                    OURS: _drain(OURS, command, _OVER_NSQD),
                    BARE: _drain(BARE, command, _OVER_NSQD),
                    LIMIT: _drain(LIMIT, command, _OVER_NSQD),
                    **{peer: _drain(peer, command, _PEER_OVER_NSQD) for peer in PEERS},
                },
                missing(PEERS),
            ),
            bars=[Bar(OURS, BARE, 0.8)] if name == "nsqd" else [],
            absent=missing(PEERS),
        )
        for name, command in servers.nsqds().items()
    ]


def _drain(party: str, command: Command, count: int) -> Measure:
    consume = driver_of(party)

    def load(server: Server, scale: float) -> Sequence[float]:
        messages = round(count * scale)
        # Twice the number in flight, so that the end does not wait for the last messages.
        drive("fill", server.port, WARM_UP + messages + IN_FLIGHT, SIZE, 100)
        return consume("consume", port=server.port, count=messages, max_in_flight=IN_FLIGHT)

    return under(command, load)
