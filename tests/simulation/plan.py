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
    ("daemons.nsqd.storage.deferred", "_LOOK_EVERY"): (0.2, 2.0),
    ("daemons.nsqd.storage.deferred_files", "_PEEKED_FILES"): (1,),
    ("daemons.nsqd.storage.deferred_files", "_REMOVED_AT_ONCE"): (1, 3),
    ("daemons.nsqd.storage.deferred", "_SPILL_BYTES"): (1, 500, 5000),
    ("daemons.nsqd.storage.deferred_file", "SOON"): (10**8, 10**9),
    ("daemons.nsqd.storage.durable", "_MAX_LAG"): (1, 5, 50),
    ("daemons.nsqd.storage.durable", "_MOST_MEMORY_ONLY"): (1, 20, 200),
    ("daemons.nsqd.storage.durable", "_SYNC_EVERY"): (1, 5, 50),
    ("daemons.nsqd.storage.durable", "_TAKE_LIMIT"): (1, 5, 50),
    ("daemons.nsqd.storage.memory_first", "_TAKE_WEIGHT"): (1, 20),
    ("daemons.nsqd.storage.memory_first", "_WRITE_LIMIT"): (1, 5),
    ("daemons.nsqd.storage.rounds", "_POSITIONS_PER_ROUND"): (1, 3),
    ("daemons.nsqd.storage.stopping", "_QUEUES_AT_ONCE"): (1, 2),
}  # fmt: skip

#: What a run looks at: with it go some faults and parts of the code where threads are made to stand still.
FOCUSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "disk": (
        (
            "kill_at", "cut_at", "kill", "cut", "restart", "full", "fsync_fails", "writes_fail",
            "short_writes", "late", "empty", "guests",
        ),
        ("daemons.nsqd.disk", "daemons.nsqd.storage", "fsync"),
    ),
    "deferred": (
        (
            "kill_at", "cut_at", "kill", "cut", "restart", "full", "fsync_fails", "writes_fail", "clock",
            "late", "empty",
        ),
        ("daemons.nsqd.storage", "daemons.nsqd.core"),
    ),
    "rolling": (("drain",), ("daemons.nsqd.core", "daemons.nsqd.session", "connection", "producer")),
    "network": (
        (
            "reset", "silence", "slow", "stand", "kill", "restart", "drain", "lookupd", "move", "adjust",
            "flap", "stop_consumer",
        ),
        ("connection", "producer", "consumer", "transport", "discovery"),
    ),
    "client": (
        (
            "reset", "interrupt", "storm", "close_producer", "stop_consumer", "kill_client", "restart",
            "stand", "silence", "adjust", "flap", "slow",
        ),
        ("connection", "producer", "consumer", "threads", "transport"),
    ),
    "topics": (
        (
            "kill_at", "cut_at", "cut", "kill", "restart", "full", "reset", "lookupd", "guests", "pause",
            "late", "empty", "unlisted",
        ),
        ("daemons.nsqd.core", "daemons.nsqd.registration", "daemons.nsqd.session", "discovery"),
    ),
    "all": (
        (
            "kill_at", "cut_at", "kill", "cut", "restart", "drain", "full", "fsync_fails", "writes_fail",
            "short_writes", "clock", "reset", "silence", "slow", "stand", "lookupd", "move", "interrupt",
            "close_producer", "stop_consumer", "kill_client", "guests", "pause", "late", "adjust", "empty",
            "unlisted", "storm", "flap",
        ),
        ("daemons.nsqd", "connection", "producer", "consumer", "threads", "transport", "discovery"),
    ),
}  # fmt: skip

#: Faults in the middle of others: after the first of them begins, or as it ends.
_THEN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("restart", "drain", "kill", "cut", "late", "empty", "guests"),
        ("kill_at", "cut_at", "writes_fail", "fsync_fails"),
    ),
    **dict.fromkeys(
        ("full", "fsync_fails", "writes_fail", "short_writes"),
        ("restart", "cut", "cut_at", "kill", "writes_fail"),
    ),
}


@dataclass
class Fault:
    """Something that happens ``at`` so many seconds after the load began; ``lasts`` until it is mended."""

    at: float
    kind: str
    number: int = 0
    """Which of several: the daemon, the connection, the operation, the thread."""
    lasts: float = 1.0
    then: str = ""
    """A fault in the middle of this one: after its beginning, or, if ``number`` is even, as it ends."""

    def __str__(self) -> str:
        return f"{self.at:.3f} s: {self.kind} {self.number}, {self.lasts:.3f} s {self.then}"


@dataclass
class Hold:
    """A thread stands still before a statement: the ``nth`` that comes to it since the load began."""

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
    held_topics: list[str] = field(default_factory=list)
    """Those of ``topics`` that are paused until then, and keep the messages for their channels."""
    crowd: int = 0
    """Further topics, which nobody uses."""
    backlog: bool = False
    """Whether nothing is consumed before the load has ended."""
    full_at_the_end: bool = False
    """Whether the messages must all be delivered while the disk is full."""
    producers: int = 1
    publishers: int = 1
    """Threads of each producer."""
    pause: float = 0.05
    """Mean seconds between two publishes of a thread."""
    burst: int = 1
    """How many publishes of a thread come without a pause, on the average."""
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
    raced: float = 0.0
    """Share of the messages that two threads answer at the same time."""
    brief: int = 0
    """How many producers and consumers there are that live for a moment only."""
    hung: float = 0.0
    """Share of the messages whose handler hangs until the end."""
    pace: int = 200
    lag_share: float = 0.01
    lag_longest: float = 0.1
    delay: float = 0.0003
    window: int = 65536
    in_pieces: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    rare: float = 0.0
    """The chance that a thread stands still at one of the ``first`` visits of a statement in ``parts``; a run
    leaves the ``holds`` that came of it instead.
    """
    first: int = 3
    parts: tuple[str, ...] = ()

    @property
    def durable(self) -> bool:
        return bool(self.nsqd_options.get("durable"))

    @property
    def calm(self) -> bool:
        """Whether nothing is broken, so that nothing may come twice."""
        return not (self.faults or self.holds or self.rare or self.failing or self.hung or self.brief)


def draw(seed: int) -> Plan:
    chance = random.Random(f"plan {seed}")
    focus = chance.choice(
        ("disk", "disk", "deferred", "deferred", "network", "client", "client", "topics", "rolling", "all")
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
    if chance.random() < 0.3:
        plan.held_topics = ["held"]
        plan.topics["held"] = [f"channel{i}" for i in range(chance.choice((1, 2, 3)))]
    if focus == "topics" and chance.random() < 0.4:
        plan.crowd = chance.choice((10, 30, 60))
    _draw_load(chance, plan)
    plan.pace = chance.choice((20, 60, 200, 600, 2000))
    plan.lag_share = chance.choice((0.0, 0.002, 0.02, 0.1))
    plan.lag_longest = chance.choice((0.001, 0.05, 0.5))
    plan.delay = chance.choice((0.00005, 0.0003, 0.002, 0.02))
    plan.window = chance.choice((65536, 4096, 600))
    if plan.delay > 0.01:  # else a backlog takes longer than timeouts allow, each time anew
        plan.window = max(plan.window, 4096)
    plan.in_pieces = chance.choice((0.0, 0.0, 0.3, 1.0))
    if chance.random() > 0.08:
        _draw_faults(chance, plan, kinds)
        plan.rare, plan.first = chance.choice((0.0, 0.003, 0.01, 0.03)), chance.choice((2, 5, 30))
        plan.parts = parts
        plan.backlog = chance.random() < (0.5 if focus in ("disk", "deferred") else 0.1)
        if focus not in ("disk", "deferred"):
            plan.brief = chance.choice((0, 0, 5, 20))
        plan.hung = chance.choice((0.0, 0.0, 0.02, 0.1))
        plan.full_at_the_end = plan.durable and focus in ("disk", "deferred") and chance.random() < 0.3
    if focus == "rolling":
        plan.nsqds = chance.choice((2, 3))
        plan.knobs["daemons.nsqd.core.topic", "COPIES_AT_ONCE"] = chance.choice((1, 5, 5000))
        plan.calls["multi_publish"] = 2.0
        if chance.random() < 0.5:  # then no publish may fail
            plan.lag_share = plan.rare = 0.0
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
        "handshake_timeout": 3.0,
        "read_timeout": 6.0,
        "heartbeat_interval": 2.0,
        "write_timeout": chance.choice((1.0, 5.0)),
        "lookupd_poll_interval": chance.choice((0.5, 3.0)),
        "retry_uncertain": chance.random() < 0.25,
        "coalesce": chance.random() < 0.7,
        "lookupd_poll_timeout": 1.0,
    }


def _draw_load(chance: random.Random, plan: Plan) -> None:
    plan.producers = chance.choice((1, 1, 2))
    plan.publishers = chance.choice((1, 2, 4))
    plan.pause = chance.choice((0.02, 0.1, 0.3))
    plan.burst = chance.choice((1, 1, 5, 20))
    calls = ("publish", "multi_publish", "publish_async", "defer", "defer_async", "http")
    plan.calls = {call: chance.random() + 0.1 for call in calls if chance.random() < 0.6} or {"publish": 1.0}
    if plan.focus in ("disk", "deferred"):  # a disk that fails for a second must meet some publishes
        plan.producers, plan.pause = chance.choice((1, 2, 3)), chance.choice((0.03, 0.1, 0.2))
        plan.seconds = chance.choice((5.0, 10.0))
    if plan.focus == "deferred":
        plan.calls["defer"] = 2.0
    plan.largest = chance.choice((50, 300, 1300, 1300))
    plan.longest_defer = chance.choice((0.5, 4.0, 15.0))
    plan.consumers = chance.choice((1, 1, 2))
    plan.threads = chance.choice((1, 3, 8))
    plan.batch = chance.choice((0, 0, 0, 4))
    plan.failing = chance.choice((0.0, 0.0, 0.1, 0.4))
    plan.slow = chance.choice((0.0, 0.05, 0.3))
    plan.raced = chance.choice((0.0, 0.0, 0.1, 0.5))
    plan.slow_seconds = chance.choice((0.01, 0.3, 1.0))


def _draw_faults(chance: random.Random, plan: Plan, kinds: Sequence[str]) -> None:
    chosen = [kind for kind in kinds if chance.random() < 0.4] or [chance.choice(kinds)]
    if not plan.found_by_lookup and "move" in chosen:
        chosen.remove("move")
    rate = chance.choice((0.3, 0.7, 1.5))  # for each second
    number = max(1, int(plan.seconds * rate))
    for _ in range(number if chosen else 0):
        at = chance.uniform(0.1, plan.seconds)
        lasts = chance.choice((0.02, 0.3, 1.0, 3.0, 7.0)) * chance.uniform(0.5, 1.5)
        fault = Fault(at, chance.choice(chosen), chance.randrange(1, 40), lasts)
        if fault.kind in ("full", "writes_fail", "fsync_fails", "short_writes"):
            fault.lasts = max(fault.lasts, 0.3)
        if fault.kind in _THEN and chance.random() < 0.4 and plan.focus != "rolling":
            fault.then = chance.choice(_THEN[fault.kind])
        plan.faults.append(fault)
    plan.faults.sort(key=lambda fault: fault.at)
