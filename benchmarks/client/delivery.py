"""The delay from a publish to its handler, at a low rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import native
from benchmarks.client.parties import LIMIT, OURS, PEERS, SIZE, driver_of, firehose, missing, present, under
from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.processes import Command, Server

_A_SECOND = 100
#: Seconds of one round. The wake-up time of a sleeping core changes from second to second, so there are many
#: rounds, and the parties take turns.
_SECONDS, _TURNS = 1.0, 3
_IN_FLIGHT = 100
_ROUNDS = 3

_DELAYS = (Figure("p50", "ms"), Figure("p99", "ms"))


def comparisons() -> Sequence[Comparison]:
    prompt = [_prompt(name, command) for name, command in servers.nsqds().items()]
    # gnsq does not take the minimal one's answer to IDENTIFY.
    minimal = replace(_prompt("a minimal nsqd in C", native.nsqd, ()), not_run=native.absence())
    return [*prompt, minimal, _held()]


def _prompt(name: str, command: Command, others: Sequence[str] = PEERS) -> Comparison:
    """Compare ours with a publisher and a subscriber on bare sockets, and with other clients."""
    peers = present({peer: _latency(peer, command) for peer in others}, missing(others))
    return Comparison(
        name=f"publish to handler, over {name}",
        figures=_DELAYS,
        contenders={OURS: _latency(OURS, command), LIMIT: _latency(LIMIT, command), **peers},
        bars=[Bar(OURS, LIMIT, 2, at_most=True)] if name == "nsqd" else [],
        absent=missing(others),
        rounds=_ROUNDS,
        turns=_TURNS,
    )


def _held() -> Comparison:
    """Compare over a server that holds messages back as long as the client asks, as Go's nsqd does."""
    command = firehose("--relay", "--hold")
    contenders = {party: _latency(party, command) for party in (OURS, *PEERS)}
    return Comparison(
        name="publish to handler, over a server that buffers",
        figures=_DELAYS,
        contenders=present(contenders, missing(PEERS)),
        bars=[Bar(OURS, peer, 0.2, at_most=True) for peer in PEERS],
        absent=missing(PEERS),
        rounds=_ROUNDS,
        turns=_TURNS,
    )


def _latency(party: str, command: Command) -> Measure:
    latency = driver_of(party)

    def load(server: Server, scale: float) -> Sequence[float]:
        return latency(
            "latency",
            port=server.port,
            count=round(_SECONDS * scale * _A_SECOND),
            a_second=_A_SECOND,
            size=SIZE,
            max_in_flight=_IN_FLIGHT,
        )

    return under(command, load)
