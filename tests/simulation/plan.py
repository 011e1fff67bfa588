"""What happens in one run: the cluster, the load, the faults, all drawn from a seed beforehand.

Each seed draws its own subset of what can happen: a fault that is always there hides what others do.
A plan is data, so that a failing run can be repeated with fewer faults.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
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

#: What a run looks at: the faults that go with it.
FOCUSES = {
    "disk": "kill_at cut_at kill cut restart full fsync_fails writes_fail late empty guests",
    "deferred": "kill_at cut_at kill cut restart full fsync_fails writes_fail clock late empty",
    "rolling": "drain",
    "network": "reset silence slow stand kill restart drain lookupd move flap stop_consumer",
    "client": "reset storm close_producer stop_consumer kill_client restart stand silence flap slow",
    "topics": "kill_at cut_at cut kill restart full reset lookupd guests late empty unlisted",
}
FOCUSES["all"] = " ".join(dict.fromkeys(" ".join(FOCUSES.values()).split()))
#: The parts of the code where threads stand still.
_PARTS = {
    "disk": "daemons.nsqd.disk daemons.nsqd.storage fsync",
    "deferred": "daemons.nsqd.storage daemons.nsqd.core",
    "rolling": "daemons.nsqd.core daemons.nsqd.session connection producer",
    "network": "connection producer consumer transport discovery",
    "client": "connection producer consumer threads transport",
    "topics": "daemons.nsqd.core daemons.nsqd.registration daemons.nsqd.session discovery",
    "all": "daemons.nsqd connection producer consumer threads transport discovery",
}

OF_DISKS = ("full", "fsync_fails", "writes_fail")
#: Which faults may come in the middle of others.
_THEN = dict.fromkeys(OF_DISKS, ("restart", "cut", "cut_at", "kill", "writes_fail")) | dict.fromkeys(
    ("restart", "drain", "kill", "cut", "late", "empty", "guests"),
    ("kill_at", "cut_at", "writes_fail", "fsync_fails"),
)
_NSQD_OPTIONS: dict[str, Sequence[Any]] = {
    "msg_timeout": (2.0, 2.0, 10.0, 60.0),
    "max_bytes_per_file": (1500, 4000, 20_000, 10**8),
    "max_msg_size": (1400,),
    "sync_every": (1, 10, 2500),
    "sync_timeout": (0.05, 0.5, 2.0),
}
_CLIENT_OPTIONS: dict[str, Sequence[Any]] = {
    "reconnect_initial": (0.02, 0.25),
    "reconnect_max": (2.0,),
    "dial_timeout": (0.5, 5.0),
    "handshake_timeout": (3.0,),
    "read_timeout": (6.0,),
    "heartbeat_interval": (2.0,),
    "write_timeout": (1.0, 5.0),
    "lookupd_poll_interval": (0.5, 3.0),
    "lookupd_poll_timeout": (1.0,),
    "retry_uncertain": (False, False, False, True),
    "coalesce": (False, True),
}
_CALLS = ("publish", "multi_publish", "publish_async", "defer", "defer_async", "http")


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


def drawn(*choices: Any, on_disk: Sequence[Any] = ()) -> Any:
    """Return a field that ``draw`` draws from ``choices``; from ``on_disk`` if the focus is on disks."""
    return field(default=choices[0], metadata={"choices": choices, "on_disk": on_disk or choices})


@dataclass
class Plan:
    seed: int
    focus: str
    seconds: float = drawn(2.0, 5.0, 10.0, on_disk=(5.0, 10.0))  # how long the load lasts
    nsqds: int = drawn(1, 2, 3, on_disk=(1,))
    lookupds: int = drawn(1, 1, 2, on_disk=(0, 1, 2))
    found_by_lookup: bool = drawn(False, True)
    durable: bool = drawn(False, False, True, on_disk=(False, True, True, True))
    nsqd_options: dict[str, Any] = field(default_factory=dict)
    client_options: dict[str, Any] = field(default_factory=dict)
    knobs: dict[tuple[str, str], Any] = field(default_factory=dict)
    topics: dict[str, list[str]] = field(default_factory=dict)  # with the channels they have from the start
    late: bool = drawn(False, False, True)  # a further topic, whose only channel comes after the load
    held: bool = drawn(False, False, True)  # one of ``topics`` is paused until then
    backlog: bool = drawn(*[False] * 9, True, on_disk=(False, True))  # consuming begins after the load
    full_at_the_end: bool = drawn(False, on_disk=(False, False, True))  # all must come while disks are full
    producers: int = drawn(1, 1, 2, on_disk=(1, 2, 3))
    publishers: int = drawn(1, 2, 4)  # threads of each producer
    # Mean seconds between two publishes of a thread. A disk that fails for a second must meet some.
    pause: float = drawn(0.01, 0.03, 0.1, on_disk=(0.02, 0.05, 0.1))
    burst: int = drawn(1, 5, 20)  # how many publishes of a thread come without a pause, on the average
    calls: dict[str, float] = field(default_factory=dict)  # with their weights
    largest: int = drawn(50, 300, 1300, 1300)
    longest_defer: float = drawn(0.5, 4.0, 15.0)
    consumers: int = drawn(1, 1, 2)
    threads: int = drawn(1, 3, 8)
    batch: int = drawn(0, 0, 0, 4)  # the size of the batches that handlers get; 0: single messages
    failing: float = drawn(0.0, 0.0, 0.1, 0.4)  # share of the messages whose handler fails
    slow: float = drawn(0.0, 0.05, 0.3)  # share of the messages whose handler takes long
    slow_seconds: float = drawn(0.01, 0.3, 1.0)
    raced: float = drawn(0.0, 0.0, 0.1, 0.5)  # share of the messages that two threads answer at once
    brief: int = drawn(0, 0, 30, on_disk=(0,))  # how many clients live for a moment only
    hung: float = drawn(0.0, 0.02, 0.1)  # share of the messages whose handler hangs until the end
    pace: int = drawn(20, 60, 200, 600, 2000)  # statements between two preemptions, on the average
    lag_share: float = drawn(0.0, 0.002, 0.02, 0.1)  # of the preempted threads: they stand still
    lag_longest: float = drawn(0.001, 0.05, 0.5)
    delay: float = drawn(0.00005, 0.0003, 0.002, 0.02)
    window: int = drawn(65536, 4096, 600)
    faults: list[Fault] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    # The chance that a thread stands still at one of the ``first`` visits of a statement in ``parts``. A run
    # leaves the ``holds`` that came of it instead.
    rare: float = drawn(0.0, 0.003, 0.01, 0.03)
    first: int = drawn(2, 5, 30)
    parts: tuple[str, ...] = ()
    narrow: bool = drawn(False, True)  # only in one module of these, and there ten times as often

    @property
    def calm(self) -> bool:
        """Whether nothing is broken, so that nothing may come twice."""
        return not (self.faults or self.holds or self.rare or self.failing or self.hung or self.brief)


def draw(seed: int) -> Plan:
    chance = random.Random(f"plan {seed}")
    plan = Plan(seed, chance.choice((*FOCUSES, "disk", "deferred", "client")))
    on_disk = plan.focus in ("disk", "deferred")
    for each in fields(plan):
        if each.metadata:
            choices = each.metadata["on_disk" if on_disk else "choices"]
            setattr(plan, each.name, chance.choice(choices))
    plan.nsqd_options = {name: chance.choice(values) for name, values in _NSQD_OPTIONS.items()}
    plan.nsqd_options["durable"] = plan.durable
    if not plan.durable:
        plan.nsqd_options["mem_queue_size"] = chance.choice((0, 1, 10, 10_000))
    plan.client_options = {name: chance.choice(values) for name, values in _CLIENT_OPTIONS.items()}
    share = chance.choice((0.2, 0.7) if on_disk else (0.0, 0.2, 0.6))
    plan.knobs = {knob: chance.choice(values) for knob, values in KNOBS.items() if chance.random() < share}
    for name in ("topic0", *["topic1"] * chance.choice((0, 0, 1)), *["held"] * plan.held):
        plan.topics[name] = [f"channel{i}" for i in range(chance.choice((1, 1, 2, 3)))]
    plan.late |= plan.focus == "topics"
    plan.calls = {call: chance.random() + 0.1 for call in _CALLS if chance.random() < 0.6} or {"publish": 1.0}
    plan.found_by_lookup &= plan.lookupds > 0
    plan.full_at_the_end &= plan.durable
    if plan.delay > 0.01:  # else a backlog takes longer than timeouts allow, each time anew
        plan.window = max(plan.window, 4096)
    if plan.focus == "deferred":
        plan.calls["defer"] = 2.0
    if plan.focus == "rolling":
        plan.nsqds = chance.choice((2, 3))
        plan.knobs["daemons.nsqd.core.topic", "COPIES_AT_ONCE"] = chance.choice((1, 5, 5000))
        plan.calls["multi_publish"] = 2.0
        if chance.random() < 0.5:  # then no publish may fail
            plan.lag_share = plan.rare = 0.0
    if chance.random() < 0.08:  # nothing happens
        plan.backlog = plan.full_at_the_end = False
        plan.rare = plan.brief = plan.hung = 0
    else:
        _draw_faults(chance, plan)
        plan.parts = tuple(_PARTS[plan.focus].split())
    return plan


def _draw_faults(chance: random.Random, plan: Plan) -> None:
    kinds = FOCUSES[plan.focus].split()
    chosen = [kind for kind in kinds if chance.random() < 0.4] or [chance.choice(kinds)]
    if not plan.found_by_lookup and "move" in chosen:
        chosen.remove("move")
    often = chance.choice((0.3, 1.0, 3.0))  # faults in a second: many are short
    number = max(2, int(plan.seconds * often))
    for _ in range(number if chosen else 0):
        at = chance.uniform(0.1, plan.seconds)
        lasts = chance.choice((0.02, 0.3, 1.0, 3.0, 7.0)[: 5 - int(often)]) * chance.uniform(0.5, 1.5)
        fault = Fault(at, chance.choice(chosen), chance.randrange(1, 40), lasts)
        if fault.kind in OF_DISKS:
            fault.lasts = max(fault.lasts, 0.3)
        if fault.kind in _THEN and chance.random() < 0.4 and plan.focus != "rolling":
            fault.then = chance.choice(_THEN[fault.kind])
        plan.faults.append(fault)
    plan.faults.sort(key=lambda fault: fault.at)
