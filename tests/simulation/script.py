"""Scripted schedules: runs in which the steps and the faults are written down by name.

A seed means nothing once the package has changed. A failure that a seed has found is therefore kept as a
schedule: a function in ``schedules.py`` that sets up what is needed, has threads stand still at a named
statement, lets a fault happen before a named operation, and says what must hold. No thread is preempted but
where the schedule says so.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from tests.simulation import code, threads
from tests.simulation.scheduler import Thread, scheduler
from tests.simulation.world import Nsqd, World

BROKEN = errno.EIO

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
        self._held: dict[tuple[str, int], float] = {}
        self.at: list[float] = []
        scheduler.held = lambda module, site: self._held.pop((module, site), 0.0)

    def check(self, holds: object, what: str) -> None:
        if not holds:
            self.violations.append(f"does not hold: {what}")

    def nsqd(self, name: str = "nsqd", **options: Any) -> Nsqd:
        nsqd = Nsqd(self.world, name, **options)
        self.check(nsqd.start(), f"{name} starts ({nsqd.failure})")
        return nsqd

    def thread(self, work: Callable[[], object]) -> Thread:
        """Run a function on a further thread."""
        return scheduler.start(work, "thread", self.world.here)

    @property
    def now(self) -> float:
        return scheduler.now

    def sleep(self, seconds: float) -> None:
        threads.sleep(seconds)

    def until(self, condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        """Wait for a condition, which must come."""
        self.check(self.world.until(condition, seconds, every=0.001), f"{what} within {seconds:g} s")

    def restart(self, nsqd: Nsqd) -> None:
        self.check(nsqd.start(), f"{nsqd.name} starts again ({nsqd.failure})")

    def received(
        self, nsqd: Nsqd, topic: str, channel: str, count: int, seconds: float = 10.0
    ) -> list[bytes]:
        """Consume until so many messages have come, or for ``seconds``; return their bodies. ``at`` has the
        times at which they came.
        """
        import nsq

        bodies: list[bytes] = []
        self.at = []

        def handle(message: nsq.Message) -> None:
            bodies.append(message.body)
            self.at.append(scheduler.now)

        consumer = nsq.Consumer(topic, channel, nsqd=nsqd.tcp_address, max_in_flight=100, max_attempts=0)
        consumer.add_handler(handle)
        consumer.start()
        self.world.until(lambda: len(bodies) >= count, seconds)
        consumer.stop(5)
        return bodies

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
    world.run(lambda: schedules[name](script), preempt=False)
    for process in world.processes:
        script.violations += process.crashed
    for daemon in world.daemons:
        script.violations += daemon.bugs()
    return script.violations
