"""What happens in one run: the cluster, the load, the faults, all drawn from a seed beforehand.

Each seed draws its own subset of what can happen: a fault that is always there hides what others do.
A plan is data, so that a failing run can be repeated with fewer faults.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

#: Constants of the package that a run makes small, so that limits are reached within few messages.
KNOBS: dict[tuple[str, str], Sequence[Any]] = {
    ("daemons.nsqd.core.deferred", "RELEASED_AT_ONCE"): (1, 3, 20),
    ("daemons.nsqd.core.topic", "COPIES_AT_ONCE"): (1, 5, 50),
    ("daemons.nsqd.core.topic", "_LARGE_PORTION"): (1, 10),
    ("daemons.nsqd.disk.queue", "_WORTH_REMOVING"): (1, 2000),
    ("daemons.nsqd.disk.reading", "CHUNK"): (64, 1000),
    ("daemons.nsqd.disk.reading", "_ENOUGH"): (100, 5000),
    ("daemons.nsqd.disk.syncing", "_AT_ONCE"): (1, 2, 4),
    ("daemons.nsqd.disk.syncing", "_COPIED_AT_ONCE"): (100, 1000),
    ("daemons.nsqd.registration", "_BATCH"): (1, 3),
    ("daemons.nsqd.session.stream", "_WRITE_AT"): (100, 2000),
    ("daemons.nsqd.storage.deferred", "COMPARED"): (2, 50),
    ("daemons.nsqd.storage.deferred", "_LOOK_EVERY"): (0.2, 2.0),
    ("daemons.nsqd.storage.deferred", "_PEEKED_FILES"): (1,),
    ("daemons.nsqd.storage.deferred", "_REMOVED_AT_ONCE"): (1, 3),
    ("daemons.nsqd.storage.deferred", "_SPILL_BYTES"): (1, 500, 5000),
    ("daemons.nsqd.storage.deferred_file", "SOON"): (10**8, 10**9),
    ("daemons.nsqd.storage.durable", "_MAX_LAG"): (1, 5, 50),
    ("daemons.nsqd.storage.durable", "_MOST_MEMORY_ONLY"): (1, 20, 200),
    ("daemons.nsqd.storage.durable", "_SYNC_EVERY"): (1, 5, 50),
    ("daemons.nsqd.storage.durable", "_TAKE_LIMIT"): (1, 5, 50),
    ("daemons.nsqd.storage.memory_first", "_TAKE_WEIGHT"): (1, 20),
    ("daemons.nsqd.storage.memory_first", "_WRITE_LIMIT"): (1, 5),
    ("daemons.nsqd.storage.storage", "_POSITIONS_PER_ROUND"): (1, 3),
    ("daemons.nsqd.storage.storage", "_QUEUES_AT_THE_END"): (1, 2),
}  # fmt: skip

#: What a run looks at: with it go some faults and parts of the code where threads are made to stand still.
FOCUSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "disk": (
        ("kill_at", "cut_at", "kill", "cut", "restart", "full", "fsync_fails", "writes_fail", "short_writes"),
        ("daemons.nsqd.disk", "daemons.nsqd.storage"),
    ),
    "deferred": (
        ("kill_at", "cut_at", "kill", "cut", "restart", "full", "fsync_fails", "writes_fail", "clock"),
        ("daemons.nsqd.storage", "daemons.nsqd.core"),
    ),
    "network": (
        ("reset", "silence", "slow", "stand", "kill", "restart", "drain", "lookupd", "move", "adjust"),
        ("connection", "producer", "consumer", "transport", "discovery"),
    ),
    "client": (
        (
            "reset", "interrupt", "close_producer", "stop_consumer", "kill_client", "restart", "stand",
            "silence", "adjust",
        ),
        ("connection", "producer", "consumer", "threads", "transport"),
    ),
    "topics": (
        (
            "kill_at", "cut_at", "cut", "kill", "restart", "full", "reset", "lookupd", "guests", "pause",
            "late",
        ),
        ("daemons.nsqd.core", "daemons.nsqd.registration", "daemons.nsqd.session", "discovery"),
    ),
    "all": (
        (
            "kill_at", "cut_at", "kill", "cut", "restart", "drain", "full", "fsync_fails", "writes_fail",
            "short_writes", "clock", "reset", "silence", "slow", "stand", "lookupd", "move", "interrupt",
            "close_producer", "stop_consumer", "kill_client", "guests", "pause", "late", "adjust",
        ),
        ("daemons.nsqd", "connection", "producer", "consumer", "threads", "transport", "discovery"),
    ),
}  # fmt: skip


@dataclass
class Fault:
    """Something that happens ``at`` so many seconds after the load began; ``lasts`` until it is mended."""

    at: float
    kind: str
    number: int = 0
    """Which of several: the daemon, the connection, the operation, the thread."""
    lasts: float = 1.0

    def __str__(self) -> str:
        return f"{self.at:.3f} s: {self.kind} {self.number}, {self.lasts:.3f} s"


@dataclass
class Hold:
    """A thread stands still before a statement: the ``nth`` that comes to it."""

    module: str
    site: int
    nth: int
    seconds: float


@dataclass
class Plan:
    seed: int
    focus: str = "all"
    seconds: float = 10.0
    """How long the load lasts."""
    nsqds: int = 1
    lookupds: int = 0
    nsqd_options: dict[str, Any] = field(default_factory=dict)
    client_options: dict[str, Any] = field(default_factory=dict)
    found_by_lookup: bool = False
    knobs: dict[tuple[str, str], Any] = field(default_factory=dict)
    topics: dict[str, list[str]] = field(default_factory=dict)
    """The channels of each topic that exist before the first publish."""
    late_topics: list[str] = field(default_factory=list)
    """Topics whose only channel comes after the load."""
    producers: int = 1
    publishers: int = 1
    """Threads of each producer."""
    pause: float = 0.05
    """Mean seconds between two publishes of a thread."""
    calls: dict[str, float] = field(default_factory=lambda: {"publish": 1.0})
    largest: int = 200
    longest_defer: float = 3.0
    consumers: int = 1
    threads: int = 1
    batch: int = 0
    """The size of the batches that handlers get; 0: single messages."""
    failing: float = 0.0
    slow: float = 0.0
    """Share of the messages whose handler takes long; how long, in seconds."""
    slow_seconds: float = 0.2
    pace: int = 200
    lag_share: float = 0.01
    lag_longest: float = 0.1
    delay: float = 0.0003
    window: int = 65536
    in_pieces: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)

    @property
    def durable(self) -> bool:
        return bool(self.nsqd_options.get("durable"))

    @property
    def calm(self) -> bool:
        """Whether nothing is broken, so that nothing may come twice."""
        return not (self.faults or self.holds or self.failing)


def draw(seed: int, sites: dict[str, list[tuple[str, int]]]) -> Plan:
    """Draw a plan. ``sites`` are the statements at which threads can stand still, by module."""
    chance = random.Random(f"plan {seed}")
    focus = chance.choice(
        ("disk", "disk", "deferred", "deferred", "network", "client", "client", "topics", "all")
    )
    kinds, parts = FOCUSES[focus]
    plan = Plan(seed, focus)
    plan.seconds = chance.choice((2.0, 5.0, 10.0))
    plan.nsqds = 1 if focus in ("disk", "deferred") else chance.choice((1, 2, 3))
    plan.lookupds = chance.choice((0, 1, 2)) if focus in ("disk", "deferred") else chance.choice((1, 1, 2))
    plan.found_by_lookup = plan.lookupds > 0 and chance.random() < 0.6
    plan.nsqd_options = _nsqd_options(chance, focus)
    plan.client_options = _client_options(chance)
    share = chance.choice((0.0, 0.2, 0.6)) if focus not in ("disk", "deferred") else chance.choice((0.2, 0.7))
    plan.knobs = {knob: chance.choice(values) for knob, values in KNOBS.items() if chance.random() < share}
    for number in range(chance.choice((1, 1, 2))):
        plan.topics[f"topic{number}"] = [f"channel{i}" for i in range(chance.choice((1, 1, 2, 3)))]
    if focus == "topics" or chance.random() < 0.3:
        plan.late_topics = ["late"]
    _draw_load(chance, plan)
    plan.pace = chance.choice((20, 60, 200, 600, 2000))
    plan.lag_share = chance.choice((0.0, 0.002, 0.02, 0.1))
    plan.lag_longest = chance.choice((0.001, 0.05, 0.5))
    plan.delay = chance.choice((0.00005, 0.0003, 0.002, 0.02))
    plan.window = chance.choice((65536, 65536, 4096, 600))
    plan.in_pieces = chance.choice((0.0, 0.0, 0.3, 1.0))
    if chance.random() > 0.08:
        _draw_faults(chance, plan, kinds)
        _draw_holds(chance, plan, parts, sites)
    _draw_bound(random.Random(f"bound {seed}"), plan)
    return plan


def _draw_bound(chance: random.Random, plan: Plan) -> None:
    """Bound channels in some runs. With draws of its own, so that the other plans stay as they are."""
    if chance.random() < 0.15:
        plan.nsqd_options["max_channel_depth"] = chance.choice((1, 5, 50))


def _nsqd_options(chance: random.Random, focus: str) -> dict[str, Any]:
    options: dict[str, Any] = {"msg_timeout": chance.choice((2.0, 10.0, 60.0))}
    options["durable"] = chance.random() < (0.75 if focus in ("disk", "deferred") else 0.4)
    if not options["durable"]:
        options["mem_queue_size"] = chance.choice((0, 1, 10, 10_000))
    options["max_bytes_per_file"] = chance.choice((1500, 4000, 20_000, 10**8))
    options["max_msg_size"] = 1400
    options["sync_every"] = chance.choice((1, 10, 2500))
    options["sync_timeout"] = chance.choice((0.05, 0.5, 2.0))
    return options


def _client_options(chance: random.Random) -> dict[str, Any]:
    return {
        "reconnect_initial": chance.choice((0.02, 0.25)),
        "reconnect_max": 2.0,
        "dial_timeout": chance.choice((0.5, 5.0)),
        "read_timeout": 6.0,
        "heartbeat_interval": 2.0,
        "write_timeout": chance.choice((1.0, 5.0)),
        "lookupd_poll_interval": chance.choice((0.5, 3.0)),
        "lookupd_poll_timeout": 1.0,
    }


def _draw_load(chance: random.Random, plan: Plan) -> None:
    plan.producers = chance.choice((1, 1, 2))
    plan.publishers = chance.choice((1, 2, 4))
    plan.pause = chance.choice((0.02, 0.1, 0.3))
    calls = ("publish", "multi_publish", "publish_async", "defer", "defer_async", "http")
    plan.calls = {call: chance.random() + 0.1 for call in calls if chance.random() < 0.6} or {"publish": 1.0}
    if plan.focus == "deferred":
        plan.calls["defer"] = 2.0
    plan.largest = chance.choice((50, 300, 1300))
    plan.longest_defer = chance.choice((0.5, 4.0, 15.0))
    plan.consumers = chance.choice((1, 1, 2))
    plan.threads = chance.choice((1, 3, 8))
    plan.batch = chance.choice((0, 0, 0, 4))
    plan.failing = chance.choice((0.0, 0.0, 0.1, 0.4))
    plan.slow = chance.choice((0.0, 0.05, 0.3))
    plan.slow_seconds = chance.choice((0.01, 0.3, 1.0))


def _draw_faults(chance: random.Random, plan: Plan, kinds: Sequence[str]) -> None:
    chosen = [kind for kind in kinds if chance.random() < 0.4] or [chance.choice(kinds)]
    if not plan.found_by_lookup and "move" in chosen:
        chosen.remove("move")
    rate = chance.choice((0.2, 0.5, 1.0))  # for each second
    number = max(1, int(plan.seconds * rate))
    for _ in range(number if chosen else 0):
        at = chance.uniform(0.1, plan.seconds)
        lasts = chance.choice((0.02, 0.3, 1.0, 3.0)) * chance.uniform(0.5, 1.5)
        plan.faults.append(Fault(at, chance.choice(chosen), chance.randrange(1, 40), lasts))
    plan.faults.sort(key=lambda fault: fault.at)


def _draw_holds(
    chance: random.Random, plan: Plan, parts: Sequence[str], sites: dict[str, list[tuple[str, int]]]
) -> None:
    places = [
        (module, site)
        for module in sorted(sites)
        if module.removeprefix("nsq.").startswith(tuple(parts))
        for site in range(len(sites[module]))
    ]
    for _ in range(chance.choice((0, 0, 10, 60))):
        module, site = chance.choice(places)
        seconds = chance.choice((0.001, 0.05, 0.5, 2.0)) * chance.uniform(0.5, 1.5)
        plan.holds.append(Hold(module, site, chance.choice((1, 1, 2, 5, 20)), seconds))
