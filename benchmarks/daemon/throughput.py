"""Publishing and consuming at full speed: ours against a minimal nsqd, and that against bare loops.

``raw`` is a loop with a recv and a send for each request; ``bulk`` only splits whole chunks into messages. No
server that stores messages comes near ``bulk``, so it has no bar and only shows the distance. The load is a
program in C (benchmarks/native), so the server is the bottleneck; ``cpu`` is the server's.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import native
from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.drivers import wire
from benchmarks.drivers.consume import IN_FLIGHT
from benchmarks.processes import Command, Server, serving
from benchmarks.usage import cpu_seconds

SIZE = 200
_BATCH = 200
_PUBS_AT_ONCE = 256
_BULK = 256 * 1024
_WINDOW = 8  # writes of a caller without an answer
_RAW_SHARE = 4  # fewer messages, because of the system calls

_PUB = len(wire.pub("bench", bytes(SIZE)))
_MPUB = len(wire.mpub("bench", bytes(SIZE), _BATCH))
_FIN = len(b"FIN \n") + 16

_FIGURES = (Figure("", "msg/s"), Figure("cpu", "µs"))


def _bars(share: float) -> tuple[Bar, Bar]:
    """The bars: our share of the minimal nsqd's rate, and its share of the loop's."""
    return Bar("nsqd", "minimal", share), Bar("minimal", "raw", 0.5)


def comparisons() -> Sequence[Comparison]:
    return [
        _publishing("pub", "pub, 1 caller", 40_000, 1, _PUB, bar=0.9, window=1),
        _publishing("pub", "pub, 16 callers", 80_000, 1, _PUB, bar=0.7, window=1, callers=16),
        _publishing("pub", "pub pipelined", 400_000, _PUBS_AT_ONCE, _PUB, bar=0.5),
        _publishing("mpub", f"mpub of {_BATCH}", 800_000, _BATCH, _MPUB, bar=0.85),
        _consuming("sub and fin, 1 consumer", 400_000, 1),
        _consuming("sub and fin, 8 consumers", 400_000, 8),
        _durable(),
    ]


def _publishing(
    verb: str,
    name: str,
    count: int,
    batch: int,
    request: int,
    *,
    bar: float,
    window: int = _WINDOW,
    callers: int = 1,
) -> Comparison:
    def measure(command: Command, count: int = count) -> Measure:
        return _publish(command, verb, count, batch, window, callers)

    contenders = {name: measure(command) for name, command in servers.nsqds().items()}
    contenders["minimal"] = measure(servers.minimal)
    contenders["raw"] = measure(servers.raw(verb, request), count // _RAW_SHARE)
    contenders["bulk"] = measure(servers.raw(verb, _BULK))
    return _comparison(name, contenders, _bars(bar))


def _publish(
    command: Command, verb: str, count: int, batch: int, window: int = _WINDOW, callers: int = 1
) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        with serving(command) as server:
            return _load(server, "publish", round(count * scale), SIZE, verb, batch, window, callers)

    return measure


def _consuming(name: str, count: int, consumers: int) -> Comparison:
    contenders = {name: _consume(command, count, consumers) for name, command in servers.nsqds().items()}
    contenders["minimal"] = _consume(servers.minimal, count, consumers)
    contenders["raw"] = _consume_raw(_FIN, count // _RAW_SHARE, consumers)
    contenders["bulk"] = _consume_raw(_BULK, count, consumers)
    return _comparison(name, contenders, _bars(0.5))


def _consume(command: Command, count: int, consumers: int) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        messages = round(count * scale)
        with serving(command) as server:
            _load(server, "publish", messages, SIZE, "mpub", _BATCH, _WINDOW, 1)
            return _load(server, "consume", messages, consumers, IN_FLIGHT // consumers)

    return measure


def _consume_raw(piece: int, count: int, consumers: int) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        messages = round(count * scale)
        with serving(servers.raw("consume", piece, IN_FLIGHT // consumers, messages)) as server:
            return _load(server, "consume", messages, consumers, IN_FLIGHT // consumers)

    return measure


def _load(server: Server, name: str, count: int, *arguments: object) -> Sequence[float]:
    """Return messages a second, and the server's CPU time for each in microseconds."""
    used = cpu_seconds(server.pid)
    (rate,) = native.load(name, server.port, count, *arguments)
    return [rate, (cpu_seconds(server.pid) - used) / count * 1e6]


def _comparison(name: str, contenders: dict[str, Measure], bars: Sequence[Bar]) -> Comparison:
    return Comparison(name=name, figures=_FIGURES, contenders=contenders, bars=bars, not_run=native.absence())


def _durable() -> Comparison:
    """Measure durable mode: only printed, because it depends on the disk."""
    normal, durable = servers.nsqd(), servers.nsqd(servers.OURS, "--durable")
    return Comparison(
        name="durable mode, mpub",
        figures=_FIGURES,
        contenders={
            "nsqd": _publish(normal, "mpub", 200_000, _BATCH),
            "nsqd --durable": _publish(durable, "mpub", 200_000, _BATCH),
        },
        not_run=native.absence() or ("" if servers.understands("durable") else "this nsqd has no --durable"),
    )
