"""Publishing as fast as it is confirmed, over the firehose and then over nsqds."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.client.consuming import ROUNDS, on_all_cores
from benchmarks.client.parties import LIMIT, OURS, SIZE, driver_of, firehose, missing, present, under
from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.processes import Command, Server

_CALLERS = 16
_BATCH = 200
_WINDOW = 1000

_ONE_BY_ONE, _TOGETHER, _ASYNC, _MANY = 8000, 20_000, 30_000, 300_000

_RATE = (Figure("", "msg/s"),)


def comparisons() -> Sequence[Comparison]:
    found = [_one_caller(), on_all_cores(_one_caller()), _many_callers(), _async(), _multi()]
    for name, command in servers.nsqds().items():
        found += [_printed(_one_caller(command), name), _printed(_async(command), name)]
    return found


def _printed(comparison: Comparison, nsqd: str) -> Comparison:
    """The same, with nothing to reach: nsqd decides too."""
    return Comparison(
        name=f"{comparison.name}, over {nsqd}",
        figures=comparison.figures,
        contenders=comparison.contenders,
        absent=comparison.absent,
        rounds=3,
        one_core=comparison.one_core,
    )


def _one_caller(command: Command | None = None) -> Comparison:
    """On one core, where what a party does is all that takes time. On two each answer waits until an idle
    core has woken up, for all parties alike, and longer than the rest takes.
    """
    contenders = {party: _load(party, "publish", _ONE_BY_ONE, command) for party in (OURS, "gnsq")}
    contenders[LIMIT] = _load(LIMIT, "publish", _ONE_BY_ONE, command, window=1)
    return Comparison(
        name="publish, 1 caller, one core",
        figures=_RATE,
        one_core=True,
        contenders=present(contenders, missing(["gnsq"])),
        bars=[Bar(OURS, "gnsq", 1.5)],
        absent=missing(["gnsq"]),
        pictured="Publish, each confirmed before the next",
        rounds=ROUNDS,
    )


def _many_callers() -> Comparison:
    """What threads cost that wait for one another shows beside a single one that never waits for any."""
    shared = f"{LIMIT}, shared"
    return Comparison(
        name=f"publish, {_CALLERS} callers",
        figures=_RATE,
        contenders={
            OURS: _load(OURS, "publish", _TOGETHER, callers=_CALLERS),
            shared: _load(LIMIT, "share", _TOGETHER, callers=_CALLERS),
            f"{LIMIT}, 1 thread": _load(LIMIT, "publish", 2 * _TOGETHER, window=_CALLERS),
        },
        bars=[Bar(OURS, shared, 0.5)],
        rounds=ROUNDS,
    )


def _async(command: Command | None = None) -> Comparison:
    contenders = {
        party: _load(party, "publish_async", _ASYNC, command, window=_WINDOW) for party in (OURS, "pynsq")
    }
    return Comparison(
        name="publish_async, pipelined",
        figures=_RATE,
        contenders=present(contenders, missing(["pynsq"])),
        bars=[Bar(OURS, "pynsq", 3)],
        absent=missing(["pynsq"]),
        pictured="Publish without waiting",
        rounds=ROUNDS,
    )


def _multi() -> Comparison:
    contenders = {party: _load(party, "multi_publish", _MANY, batch=_BATCH) for party in (OURS, "gnsq")}
    return Comparison(
        name=f"multi_publish of {_BATCH}",
        figures=_RATE,
        contenders=present(contenders, missing(["gnsq"])),
        bars=[Bar(OURS, "gnsq", 1)],
        absent=missing(["gnsq"]),
        pictured=f"Publish {_BATCH} at a time",
        rounds=ROUNDS,
    )


def _load(party: str, name: str, count: int, command: Command | None = None, **options: object) -> Measure:
    drive = driver_of(party)

    def load(server: Server, scale: float) -> Sequence[float]:
        return drive(name, port=server.port, count=round(count * scale), size=SIZE, **options)

    return under(command or firehose(), load)
