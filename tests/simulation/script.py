"""Scripted schedules: runs in which the steps and the faults are written down by name.

A seed means nothing once the package has changed. A failure that a seed has found is therefore kept as a
schedule: a function in ``schedules.py`` that sets up what is needed, has threads stand still at a named
statement, lets a fault happen before a named operation, and says what must hold. No thread is preempted but
where the schedule says so.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation import code
from tests.simulation.scheduler import Thread, scheduler
from tests.simulation.world import Nsqd, World

BROKEN = errno.EIO
TOPIC, CHANNEL = "orders", "billing"

schedules: dict[str, Callable[[Script], None]] = {}


def schedule(function: Callable[[Script], None]) -> Callable[[Script], None]:
    """Put a function into the list of schedules, by its name."""
    schedules[function.__name__] = function
    return function


class Script:
    """What a schedule uses. ``check`` collects what does not hold."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[str] = []
        self.at: list[float] = []  # when the messages came that ``received`` has returned
        self.closed: list[Any] = []  # the producers, which are closed at the end
        self._held: dict[tuple[str, int], float] = {}
        scheduler.held = lambda module, site: self._held.pop((module, site), 0.0)

    def check(self, holds: object, what: str) -> None:
        if not holds:
            self.violations.append(f"does not hold: {what}")

    def nsqd(self, *, channel: bool = False, **options: Any) -> tuple[Nsqd, Any]:
        """Start an nsqd, with the channel if that is asked for; return it, and a producer for it."""
        import nsq

        nsqd = Nsqd(self.world, "nsqd", **options)
        self.start(nsqd)
        if channel:
            self.api(nsqd).create_topic(TOPIC)
            self.api(nsqd).create_channel(TOPIC, CHANNEL)
        self.closed.append(nsq.Producer(nsqd.tcp_address))
        return nsqd, self.closed[-1]

    def start(self, nsqd: Nsqd) -> None:
        self.check(nsqd.start(), f"{nsqd.name} starts ({nsqd.failure})")

    def api(self, nsqd: Nsqd) -> Any:
        from nsq.http.nsqd import NsqdApi

        return NsqdApi(nsqd.http_address, timeout=5.0)

    def thread(self, work: Callable[[], object]) -> Thread:
        """Run a function on a further thread."""
        return scheduler.start(work, "thread", self.world.here)

    def until(self, condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        """Wait for a condition, which must come."""
        self.check(self.world.until(condition, seconds, every=0.001), f"{what} within {seconds:g} s")

    @contextmanager
    def consumer(self, nsqd: Nsqd, handler: Callable[[Any], object], threads: int = 1) -> Iterator[None]:
        import nsq

        consumer = nsq.Consumer(TOPIC, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=100, max_attempts=0)
        consumer.add_handler(handler, threads=threads)
        consumer.start()
        yield
        consumer.stop(0.1)

    def received(self, nsqd: Nsqd, count: int, seconds: float = 10.0) -> list[bytes]:
        """Consume until so many messages have come, or for ``seconds``; return their bodies."""
        bodies: list[bytes] = []
        self.at = []

        def handle(message: Any) -> None:
            bodies.append(message.body)
            self.at.append(scheduler.now)

        with self.consumer(nsqd, handle):
            self.world.until(lambda: len(bodies) >= count, seconds)
        return bodies

    def check_received(self, nsqd: Nsqd, bodies: list[bytes]) -> None:
        """Start an nsqd that is down, or is losing its power, and look whether it has all messages."""
        self.until(lambda: not nsqd.alive, f"{nsqd.name} ends")
        self.start(nsqd)
        missing = set(bodies) - set(self.received(nsqd, len(bodies)))
        self.check(not missing, f"confirmed messages come: {len(missing)} of {len(bodies)} do not")

    # Where threads stand still, and faults.

    def hold(self, function: str, statement: str, seconds: float) -> None:
        """Have the next thread that comes to a statement of a function stand still before it. ``function``
        is ``module:Class.method``, ``statement`` is how the line begins.
        """
        place = code.site_of(function, statement)
        self._held[place] = seconds
        code.mark(*place)

    def before(self, nsqd: Nsqd, operation: str, name: str, act: Callable[[], int | None]) -> None:
        """Call ``act`` before the next operation of this kind on a file whose name contains ``name``. It may
        kill the nsqd, cut its power, or return an errno with which the operation fails.
        """

        def hook(kind: str, file: str) -> int:
            if kind != operation or name not in file:
                return 0
            nsqd.disk.hooks.remove(hook)
            return act() or 0

        nsqd.disk.hooks.append(hook)


def perform(name: str, tell: Callable[[str], None] | None = None) -> list[str]:
    """Run a schedule in this process, which must not have run anything; return what does not hold."""
    world = World(name)
    script = Script(world)
    if tell is not None:
        scheduler.tell(tell)

    def scenario() -> None:
        schedules[name](script)
        for producer in script.closed:
            producer.close()

    world.run(scenario, preempt=False)
    for process in world.processes:
        script.violations += process.crashed
    for daemon in world.daemons:
        script.violations += daemon.bugs()
    return script.violations
