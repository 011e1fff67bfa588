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

#: What a run looks at: the faults that go with it, and the parts of the code where threads stand still.
FOCUSES = {
    "disk": (
        "kill_at cut_at kill cut restart full fsync_fails writes_fail short_writes late empty guests",
        "daemons.nsqd.disk daemons.nsqd.storage fsync",
    ),
    "deferred": (
        "kill_at cut_at kill cut restart full fsync_fails writes_fail clock late empty",
        "daemons.nsqd.storage daemons.nsqd.core",
    ),
    "rolling": ("drain", "daemons.nsqd.core daemons.nsqd.session connection producer"),
    "network": (
        "reset silence slow stand kill restart drain lookupd move adjust flap stop_consumer",
        "connection producer consumer transport discovery",
    ),
    "client": (
        "reset interrupt storm close_producer stop_consumer kill_client restart stand silence adjust flap "
        "slow",
        "connection producer consumer threads transport",
    ),
    "topics": (
        "kill_at cut_at cut kill restart full reset lookupd guests pause late empty unlisted",
        "daemons.nsqd.core daemons.nsqd.registration daemons.nsqd.session discovery",
    ),
    "all": (
        "kill_at cut_at kill cut restart drain full fsync_fails writes_fail short_writes clock reset silence "
        "slow stand lookupd move interrupt close_producer stop_consumer kill_client guests pause late adjust "
        "empty unlisted storm flap",
        "daemons.nsqd connection producer consumer threads transport discovery",
    ),
}

_OF_DISKS = ("full", "fsync_fails", "writes_fail", "short_writes")
#: Which faults may come in the middle of others.
_THEN = dict.fromkeys(_OF_DISKS, ("restart", "cut", "cut_at", "kill", "writes_fail")) | dict.fromkeys(
    ("restart", "drain", "kill", "cut", "late", "empty", "guests"),
    ("kill_at", "cut_at", "writes_fail", "fsync_fails"),
)
#: What each run draws of the load, and below of the handlers, the threads and the network.
_PUBLISHING: dict[str, Sequence[Any]] = {
    "producers": (1, 1, 2),
    "publishers": (1, 2, 4),
    "pause": (0.02, 0.1, 0.3),
    "burst": (1, 1, 5, 20),
}
_CALLS = ("publish", "multi_publish", "publish_async", "defer", "defer_async", "http")
_REST: dict[str, Sequence[Any]] = {
    "largest": (50, 300, 1300, 1300),
    "longest_defer": (0.5, 4.0, 15.0),
    "consumers": (1, 1, 2),
    "threads": (1, 3, 8),
    "batch": (0, 0, 0, 4),
    "failing": (0.0, 0.0, 0.1, 0.4),
    "slow": (0.0, 0.05, 0.3),
    "raced": (0.0, 0.0, 0.1, 0.5),
    "slow_seconds": (0.01, 0.3, 1.0),
    "pace": (20, 60, 200, 600, 2000),
    "lag_share": (0.0, 0.002, 0.02, 0.1),
    "lag_longest": (0.001, 0.05, 0.5),
    "delay": (0.00005, 0.0003, 0.002, 0.02),
    "window": (65536, 4096, 600),
    "in_pieces": (0.0, 0.0, 0.3, 1.0),
}


@dataclass
class Fault:
    """Something that happens."""

    at: float  # seconds after the load began
    kind: str
    number: int = 0  # which of several: the daemon, the connection, the operation, the thread
    lasts: float = 1.0  # until it is mended
    then: str = ""  # a fault in its middle: after its beginning, or, if ``number`` is even, as it ends

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
    seconds: float = 10.0  # how long the load lasts
    nsqds: int = 1
    lookupds: int = 0
    nsqd_options: dict[str, Any] = field(default_factory=dict)
    client_options: dict[str, Any] = field(default_factory=dict)
    found_by_lookup: bool = False
    knobs: dict[tuple[str, str], Any] = field(default_factory=dict)
    topics: dict[str, list[str]] = field(default_factory=dict)  # with the channels they have from the start
    late_topics: list[str] = field(default_factory=list)  # their only channel comes after the load
    held_topics: list[str] = field(default_factory=list)  # those of ``topics`` that are paused until then
    crowd: int = 0  # further topics, which nobody uses
    backlog: bool = False  # nothing is consumed before the load has ended
    full_at_the_end: bool = False  # all messages must be delivered while the disk is full
    producers: int = 1
    publishers: int = 1  # threads of each producer
    pause: float = 0.05  # mean seconds between two publishes of a thread
    burst: int = 1  # how many publishes of a thread come without a pause, on the average
    calls: dict[str, float] = field(default_factory=dict)  # with their weights
    largest: int = 200
    longest_defer: float = 3.0
    consumers: int = 1
    threads: int = 1
    batch: int = 0  # the size of the batches that handlers get; 0: single messages
    failing: float = 0.0  # share of the messages whose handler fails
    slow: float = 0.0  # share of the messages whose handler takes long
    slow_seconds: float = 0.2
    raced: float = 0.0  # share of the messages that two threads answer at the same time
    brief: int = 0  # how many producers and consumers live for a moment only
    hung: float = 0.0  # share of the messages whose handler hangs until the end
    pace: int = 200
    lag_share: float = 0.01
    lag_longest: float = 0.1
    delay: float = 0.0003
    window: int = 65536
    in_pieces: float = 0.0
    faults: list[Fault] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    # The chance that a thread stands still at one of the ``first`` visits of a statement in ``parts``. A run
    # leaves the ``holds`` that came of it instead.
    rare: float = 0.0
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
    on_disk = focus in ("disk", "deferred")
    plan = Plan(seed, focus)
    plan.seconds = chance.choice((2.0, 5.0, 10.0))
    plan.nsqds = 1 if on_disk else chance.choice((1, 2, 3))
    plan.lookupds = chance.choice((0, 1, 2) if on_disk else (1, 1, 2))
    plan.found_by_lookup = plan.lookupds > 0 and chance.random() < 0.6
    _draw_options(chance, plan, on_disk)
    share = chance.choice((0.2, 0.7) if on_disk else (0.0, 0.2, 0.6))
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
    vars(plan).update({name: chance.choice(values) for name, values in _PUBLISHING.items()})
    plan.calls = {call: chance.random() + 0.1 for call in _CALLS if chance.random() < 0.6} or {"publish": 1.0}
    if on_disk:  # a disk that fails for a second must meet some publishes
        plan.producers, plan.pause = chance.choice((1, 2, 3)), chance.choice((0.03, 0.1, 0.2))
        plan.seconds = chance.choice((5.0, 10.0))
    if focus == "deferred":
        plan.calls["defer"] = 2.0
    vars(plan).update({name: chance.choice(values) for name, values in _REST.items()})
    if plan.delay > 0.01:  # else a backlog takes longer than timeouts allow, each time anew
        plan.window = max(plan.window, 4096)
    if chance.random() > 0.08:
        _draw_faults(chance, plan)
        plan.rare, plan.first = chance.choice((0.0, 0.003, 0.01, 0.03)), chance.choice((2, 5, 30))
        plan.parts = tuple(FOCUSES[focus][1].split())
        plan.backlog = chance.random() < (0.5 if on_disk else 0.1)
        plan.brief = 0 if on_disk else chance.choice((0, 0, 5, 20))
        plan.hung = chance.choice((0.0, 0.0, 0.02, 0.1))
        plan.full_at_the_end = plan.durable and on_disk and chance.random() < 0.3
    if focus == "rolling":
        plan.nsqds = chance.choice((2, 3))
        plan.knobs["daemons.nsqd.core.topic", "COPIES_AT_ONCE"] = chance.choice((1, 5, 5000))
        plan.calls["multi_publish"] = 2.0
        if chance.random() < 0.5:  # then no publish may fail
            plan.lag_share = plan.rare = 0.0
    bound = random.Random(f"bound {seed}")  # draws of its own, so that the other plans stay as they are
    if bound.random() < 0.15:
        plan.nsqd_options["max_channel_depth"] = bound.choice((1, 5, 50))
    return plan


def _draw_options(chance: random.Random, plan: Plan, on_disk: bool) -> None:
    plan.nsqd_options = {
        "msg_timeout": chance.choice((2.0, 10.0, 60.0)),
        "durable": (durable := chance.random() < (0.75 if on_disk else 0.4)),
        **({} if durable else {"mem_queue_size": chance.choice((0, 1, 10, 10_000))}),
        "max_bytes_per_file": chance.choice((1500, 4000, 20_000, 10**8)),
        "max_msg_size": 1400,
        "sync_every": chance.choice((1, 10, 2500)),
        "sync_timeout": chance.choice((0.05, 0.5, 2.0)),
    }
    plan.client_options = {
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


def _draw_faults(chance: random.Random, plan: Plan) -> None:
    kinds = FOCUSES[plan.focus][0].split()
    chosen = [kind for kind in kinds if chance.random() < 0.4] or [chance.choice(kinds)]
    if not plan.found_by_lookup and "move" in chosen:
        chosen.remove("move")
    number = max(1, int(plan.seconds * chance.choice((0.3, 0.7, 1.5))))
    for _ in range(number if chosen else 0):
        at = chance.uniform(0.1, plan.seconds)
        lasts = chance.choice((0.02, 0.3, 1.0, 3.0, 7.0)) * chance.uniform(0.5, 1.5)
        fault = Fault(at, chance.choice(chosen), chance.randrange(1, 40), lasts)
        if fault.kind in _OF_DISKS:
            fault.lasts = max(fault.lasts, 0.3)
        if fault.kind in _THEN and chance.random() < 0.4 and plan.focus != "rolling":
            fault.then = chance.choice(_THEN[fault.kind])
        plan.faults.append(fault)
    plan.faults.sort(key=lambda fault: fault.at)
