"""Publishing and consuming at full speed: ours against a minimal nsqd, and that against bare loops.

``raw`` is a loop with a recv and a send for each request; ``bulk`` only splits whole chunks into messages. No
server that stores messages comes near ``bulk``, so it has no bar and only shows the distance.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.drivers import wire
from benchmarks.drivers.consume import IN_FLIGHT
from benchmarks.processes import Command, drive, serving

SIZE = 200
_BATCH = 200
_PUBS_AT_ONCE = 256
_BULK = 256 * 1024
_RAW_SHARE = 4  # fewer messages, because of the system calls

_PUB = len(wire.pub("bench", bytes(SIZE)))
_MPUB = len(wire.mpub("bench", bytes(SIZE), _BATCH))
_FIN = len(b"FIN \n") + 16

_RATE = (Figure("", "msg/s"),)


def _bars(share: float) -> tuple[Bar, Bar]:
    """The bars: our share of the minimal nsqd's rate, and its share of the loop's."""
    return Bar("nsqd", "minimal", share), Bar("minimal", "raw", 0.5)


def comparisons() -> Sequence[Comparison]:
    return [
        _publishing("pub", "pub, one caller", 40_000, 1, _PUB, bar=0.9, window=0),
        _publishing("pub", "pub pipelined", 400_000, _PUBS_AT_ONCE, _PUB, bar=0.5),
        _publishing("mpub", f"mpub of {_BATCH}", 800_000, _BATCH, _MPUB, bar=0.85),
        _consuming("sub and fin, 1 consumer", 400_000, 1),
        _consuming("sub and fin, 8 consumers", 400_000, 8),
        _durable(),
    ]


def _publishing(
    verb: str, name: str, count: int, batch: int, request: int, *, bar: float, window: int = 8
) -> Comparison:
    def measure(command: Command, count: int = count) -> Measure:
        return _publish(command, verb, count, batch, window)

    contenders = {name: measure(command) for name, command in servers.nsqds().items()}
    contenders["minimal"] = measure(servers.minimal)
    contenders["raw"] = measure(servers.raw(verb, request), count // _RAW_SHARE)
    contenders["bulk"] = measure(servers.raw(verb, _BULK))
    return Comparison(name=name, figures=_RATE, contenders=contenders, bars=_bars(bar))


def _publish(command: Command, verb: str, count: int, batch: int, window: int = 8) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        with serving(command) as server:
            return drive("publish", server.port, verb, round(count * scale), SIZE, batch, window)

    return measure


def _consuming(name: str, count: int, consumers: int) -> Comparison:
    contenders = {name: _consume(command, count, consumers) for name, command in servers.nsqds().items()}
    contenders["minimal"] = _consume(servers.minimal, count, consumers)
    contenders["raw"] = _consume_raw(_FIN, count // _RAW_SHARE, consumers)
    contenders["bulk"] = _consume_raw(_BULK, count, consumers)
    return Comparison(name=name, figures=_RATE, contenders=contenders, bars=_bars(0.5))


def _consume(command: Command, count: int, consumers: int) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        with serving(command) as server:
            drive("fill", server.port, round(count * scale), SIZE, _BATCH)
            return drive("consume", server.port, round(count * scale), SIZE, consumers)

    return measure


def _consume_raw(piece: int, count: int, consumers: int) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        with serving(servers.raw("consume", piece, IN_FLIGHT // consumers, round(count * scale))) as server:
            return drive("consume", server.port, round(count * scale), SIZE, consumers)

    return measure


def _durable() -> Comparison:
    """Measure durable mode: only printed, because it depends on the disk."""
    normal, durable = servers.nsqd(), servers.nsqd(servers.OURS, "--durable")
    return Comparison(
        name="durable mode, mpub",
        figures=_RATE,
        contenders={
            "nsqd": _publish(normal, "mpub", 200_000, _BATCH),
            "nsqd --durable": _publish(durable, "mpub", 200_000, _BATCH),
        },
        not_run="" if servers.understands("durable") else "this nsqd has no --durable",
    )
