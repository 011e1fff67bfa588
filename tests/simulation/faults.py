"""Carries out the faults of a plan on a cluster, and mends them."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation import threads
from tests.simulation.disk import CHANGES
from tests.simulation.network import End, Host, Link, network
from tests.simulation.plan import Fault
from tests.simulation.scheduler import scheduler
from tests.simulation.world import Daemon, Nsqd, World

#: Seconds after which clients have found an nsqd again.
_FOUND_AGAIN = 5.0


#: Faults of clients, topics and channels, which the load carries out.
_OF_LOAD: dict[str, Callable[[Any, Nsqd, Fault], object]] = {
    "interrupt": lambda load, _, fault: load.interrupt(fault.number),
    "flap": lambda load, nsqd, fault: load.flap(nsqd, fault.number, fault.lasts),
    "adjust": lambda load, _, fault: load.adjust(fault.number, fault.lasts),
    "late": lambda load, _, fault: load.begin_late(),
    "close_producer": lambda load, _, fault: load.replace_producer(fault.number),
    "stop_consumer": lambda load, _, fault: load.replace_consumer(fault.number, fault.lasts),
    "kill_client": lambda load, _, fault: load.kill_client(fault.number),
    "guests": lambda load, nsqd, fault: load.visit(nsqd, fault.number, fault.lasts),
    "pause": lambda load, nsqd, fault: load.pause(nsqd, fault.number, fault.lasts),
    "empty": lambda load, nsqd, fault: load.empty(nsqd, fault.number),
}


@dataclass
class Span:
    fault: Fault
    began: float
    ended: float = math.inf


class Faults:
    """Each kind of fault is a method of its name, or ``_OF_LOAD`` has it. A thread of its own runs it: it
    begins the fault, waits, and mends it.

    ``happened`` counts the faults by kind, ``spans`` has each with its beginning and end. ``lossy`` has the
    times of kills and power cuts: what a default nsqd had in memory then is lost. ``stopped`` has those at
    which an nsqd had stopped.
    """

    def __init__(self, world: World, nsqds: Sequence[Nsqd], lookupds: Sequence[Daemon], load: Any) -> None:
        self.world, self.nsqds, self.lookupds, self.load = world, nsqds, lookupds, load
        self.happened: dict[str, int] = {}
        self.lossy: list[float] = []
        self.stopped: list[float] = []
        self.stood = 0.0
        """Seconds for which processes stood still."""
        self.disk_failed = False
        self.clock_set: list[float] = []
        """When the wall clock of an nsqd was set."""
        self.not_started: list[str] = []
        """Starts that failed although the disk worked."""
        self.unclean: list[str] = []
        self.mended = False
        self.spans: list[Span] = []

    def do(self, fault: Fault) -> None:
        """Begin a fault."""
        self.happened[fault.kind] = self.happened.get(fault.kind, 0) + 1
        scheduler.story(f"fault {fault}")
        scheduler.note("fault", fault.kind, fault.number)
        span = Span(fault, scheduler.now)
        self.spans.append(span)

        def run() -> None:
            nsqd = self.nsqds[fault.number % len(self.nsqds)]
            try:
                if fault.kind in _OF_LOAD:
                    _OF_LOAD[fault.kind](self.load, nsqd, fault)
                else:
                    getattr(self, fault.kind)(fault, nsqd)
            finally:
                span.ended = scheduler.now

        scheduler.start(run, f"fault-{fault.kind}", self.world.here)
        if fault.number % 2:
            self._then(fault)

    def _then(self, fault: Fault) -> None:
        if fault.then and not self.mended:
            self.do(Fault(fault.at, fault.then, self.world.chance.randrange(1, 40), fault.lasts))

    def _wait(self, fault: Fault) -> None:
        """Wait until a fault is to end, or everything is mended; begin what happens in its middle."""
        self.world.until(lambda: self.mended, fault.lasts)
        if not fault.number % 2:
            self._then(fault)

    def fill(self) -> None:
        """Fill all disks until they are mended again."""
        self.mended, self.disk_failed = False, True
        for nsqd in self.nsqds:
            nsqd.disk.capacity = 0  # other programs take what nsqd frees

    def mend(self, seconds: float) -> None:
        """Mend everything, and wait until all daemons run again."""
        self.mended = True
        network.mend()
        for nsqd in self.nsqds:
            nsqd.disk.heal()
            if nsqd.process is not None and nsqd.process.clock_error:
                nsqd.process.clock_error = 0.0
                self.clock_set.append(scheduler.now)
        self.world.until(lambda: all(span.ended < math.inf for span in self.spans), seconds)
        for nsqd in self.nsqds:
            self._run_again(nsqd)

    # Daemons.

    def _run_again(self, daemon: Daemon) -> None:
        """Start a daemon until it runs, unless another thread does so."""
        for _ in range(20):
            if not self.world.until(lambda: not daemon.alive or daemon.running, 60.0):
                break
            if daemon.running or daemon.start():
                return
            if daemon.failure and not self.disk_failed:
                break
            if self.mended and isinstance(daemon, Nsqd):
                daemon.disk.heal()
            threads.sleep(0.2)
        self.not_started.append(f"{daemon.name}: {daemon.failure}")

    def kill(self, fault: Fault, nsqd: Nsqd) -> None:
        self._end(fault, nsqd, nsqd.kill)

    def cut(self, fault: Fault, nsqd: Nsqd) -> None:
        self._end(fault, nsqd, nsqd.cut_power)

    def _end(self, fault: Fault, nsqd: Nsqd, end: Callable[[], None]) -> None:
        if nsqd.running:
            self.lossy.append(scheduler.now)
            end()
            self._wait(fault)
            self._run_again(nsqd)

    def kill_at(self, fault: Fault, nsqd: Nsqd) -> None:
        self._end_at(fault, nsqd, nsqd.kill)

    def cut_at(self, fault: Fault, nsqd: Nsqd) -> None:
        self._end_at(fault, nsqd, nsqd.cut_power)

    def _end_at(self, fault: Fault, nsqd: Nsqd, end: Callable[[], None]) -> None:
        """End the nsqd before one of its next operations that change files."""
        at = nsqd.disk.operations + 1 + fault.number**2 // 10

        def hook(operation: str, name: str) -> int:
            if operation in CHANGES and nsqd.disk.operations >= at and nsqd.alive:
                self.lossy.append(scheduler.now)
                nsqd.disk.hooks.remove(hook)
                scheduler.story(f"{nsqd.name} ends before: {operation} {name}")
                end()
            return 0

        nsqd.disk.hooks.append(hook)
        self.world.until(lambda: hook not in nsqd.disk.hooks or self.mended, 30.0)
        if hook in nsqd.disk.hooks:
            nsqd.disk.hooks.remove(hook)
        else:
            threads.sleep(min(fault.lasts, 1.0))
            self._run_again(nsqd)

    def restart(self, fault: Fault, nsqd: Nsqd, drain: bool = False) -> None:
        if not nsqd.running or nsqd.stopping:
            return
        failed_before = self.disk_failed
        if not nsqd.stop(drain=drain):
            self.unclean.append(f"{nsqd.name} did not stop")
            nsqd.kill()
        elif nsqd.stopped_cleanly is False:
            self.lossy.append(scheduler.now)
            if not (failed_before or self.disk_failed):
                self.unclean.append(f"{nsqd.name} stopped and lost something, although the disk works")
        self.stopped.append(scheduler.now)
        if fault.kind == "move":
            network.move(nsqd.host)
        self._wait(fault)
        self._run_again(nsqd)

    move = restart

    def drain(self, fault: Fault, nsqd: Nsqd) -> None:
        """Restart an nsqd without its clients noticing: one at a time, which they have found again."""
        others = [span for span in self.spans if span.fault.kind == "drain" and span.fault is not fault]
        if not any(span.ended > scheduler.now - _FOUND_AGAIN for span in others):
            self.restart(fault, nsqd, drain=True)

    def lookupd(self, fault: Fault, _nsqd: Nsqd) -> None:
        for lookupd in self.lookupds:
            if lookupd.running and lookupd is self.lookupds[fault.number % len(self.lookupds)]:
                lookupd.kill()
                self._wait(fault)
                self._run_again(lookupd)

    def stand(self, fault: Fault, _nsqd: Nsqd) -> None:
        """Stop a process for a while, as SIGSTOP does."""
        daemons = [daemon.process for daemon in (*self.nsqds, *self.lookupds) if daemon.running]
        processes = [*daemons, *(process for process in self.world.clients if process.alive)]
        if process := processes[fault.number % len(processes)]:
            self.stood += fault.lasts
            process.stop(fault.lasts)
            self._wait(fault)

    def clock(self, fault: Fault, nsqd: Nsqd) -> None:
        if nsqd.process is not None:
            self.clock_set.append(scheduler.now)
            nsqd.process.clock_error += (fault.number % 3 - 1) * 10 * fault.lasts

    # The network.

    def reset(self, _fault: Fault, nsqd: Nsqd) -> None:
        """Break a connection when something is on its way over it, or a moment later."""
        broken = list[End]()

        def look(end: End) -> None:
            if nsqd.host in (end.host, end.peer and end.peer.host) and not broken:
                broken.append(end)
                later = scheduler.now + 4 * network.delay * scheduler.chance.random()
                scheduler.at(later, partial(network.reset, end))

        network.watch = look
        self.world.until(lambda: broken or self.mended, 1.0)

    def _links(self, nsqd: Nsqd, others: Sequence[Host] = ()) -> list[Link]:
        others = others or [host for host in network.hosts.values() if host is not nsqd.host]
        return [network.link(nsqd.host, other) for other in others]

    def silence(self, fault: Fault, nsqd: Nsqd) -> None:
        links = self._links(nsqd)
        for link in links:
            link.silent = True
        self._wait(fault)
        for link in links:
            link.mend()

    def slow(self, fault: Fault, nsqd: Nsqd) -> None:
        links = self._links(nsqd)
        for link in links:
            link.delay = (0.03, 0.2, 1.0)[fault.number % 3]
        self._wait(fault)
        for link in links:
            link.mend()

    def unlisted(self, fault: Fault, nsqd: Nsqd) -> None:
        """Cut an nsqd off from the nsqlookupds, while topics come and go."""
        hosts = [lookupd.host for lookupd in self.lookupds]
        links = self._links(nsqd, hosts)
        for link in links:
            link.silent = True
        for end in [end for end in nsqd.host.ends if end.peer is not None and end.peer.host in hosts]:
            network.reset(end)
        self._wait(fault)
        for link in links:
            link.mend()
        self.world.until(lambda: self.load.listed(nsqd), 20.0, every=0.002)
        for number in range(fault.number, fault.number + 20):  # while it registers
            self.load.visit(nsqd, number, 0.002)

    # Disks.

    def full(self, fault: Fault, nsqd: Nsqd) -> None:
        self.disk_failed = True
        nsqd.disk.capacity = nsqd.disk.used + fault.number * 10
        self._wait(fault)
        nsqd.disk.capacity = math.inf

    def fsync_fails(self, fault: Fault, nsqd: Nsqd) -> None:
        left = [errno.EIO] * (1, 2, 10, 1000)[fault.number % 4]
        self._fail(fault, nsqd, lambda operation, _: left.pop() if operation == "fsync" and left else 0)

    def writes_fail(self, fault: Fault, nsqd: Nsqd) -> None:
        code = (errno.EIO, errno.ENOSPC)[fault.number % 2]

        def hook(operation: str, _name: str) -> int:
            return code if operation in CHANGES and scheduler.chance.random() < 0.4 else 0

        self._fail(fault, nsqd, hook)

    def _fail(self, fault: Fault, nsqd: Nsqd, hook: Callable[[str, str], int]) -> None:
        self.disk_failed = True
        nsqd.disk.hooks.append(hook)
        self._wait(fault)
        with suppress(ValueError):  # everything is mended
            nsqd.disk.hooks.remove(hook)

    def short_writes(self, fault: Fault, nsqd: Nsqd) -> None:
        nsqd.disk.short_writes = 0.3
        self._wait(fault)
        nsqd.disk.short_writes = 0.0

    def storm(self, fault: Fault, _nsqd: Nsqd) -> None:
        """Interrupt the next calls of users."""
        self.load.interrupts += 5 * fault.number
