"""Carries out the faults of a plan on a cluster, and mends them."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation import threads
from tests.simulation.disk import CHANGES
from tests.simulation.network import End, network
from tests.simulation.plan import Fault
from tests.simulation.scheduler import scheduler
from tests.simulation.world import Daemon, Nsqd, World

#: Seconds after which clients have found an nsqd again.
_FOUND_AGAIN = 5.0


@dataclass
class Span:
    fault: Fault
    began: float
    ended: float


class Faults:
    """``happened`` counts the faults by kind, ``spans`` has each with its beginning and end. Each kind is a
    method of its name.

    ``lossy`` has the times of kills and power cuts: what a default nsqd had in memory then is lost.
    """

    def __init__(self, world: World, nsqds: Sequence[Nsqd], lookupds: Sequence[Daemon], load: Any) -> None:
        self.world, self.nsqds, self.lookupds, self.load = world, nsqds, lookupds, load
        self.happened: dict[str, int] = {}
        self.lossy: list[float] = []
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
        self._busy: list[Fault] = []
        self._ending: dict[str, Callable[[str, str], None]] = {}
        """What looks, before each operation on a disk, whether its nsqd ends there."""
        self._failing: dict[str, list[Callable[[str], int]]] = {nsqd.name: [] for nsqd in nsqds}
        """What says which errno an operation on a disk fails with."""
        for nsqd in nsqds:
            nsqd.disk.fail = partial(self._before, nsqd.name)

    def do(self, fault: Fault) -> None:
        """Begin a fault; what must be mended is, on a thread of its own."""
        self.happened[fault.kind] = self.happened.get(fault.kind, 0) + 1
        scheduler.story(f"fault {fault}")
        scheduler.note("fault", fault.kind, fault.number)
        self.spans.append(Span(fault, scheduler.now, scheduler.now))
        getattr(self, fault.kind)(fault)
        if fault.number % 2:
            self._then(fault)

    def _then(self, fault: Fault) -> None:
        if fault.then and not self.mended:
            self.do(Fault(fault.at, fault.then, self.world.chance.randrange(1, 40), fault.lasts))

    def fill(self) -> None:
        """Fill all disks until they are mended again."""
        self.mended, self.disk_failed = False, True
        for nsqd in self.nsqds:
            nsqd.disk.capacity = 0  # other programs take what nsqd frees

    def mend(self, seconds: float) -> None:
        """Mend everything, and wait until all daemons run again."""
        self.mended = True
        for link in network._links.values():
            link.mend()
            link.delay = network.delay
        for nsqd in self.nsqds:
            self._heal_disk(nsqd)
            if nsqd.process is not None and nsqd.process.clock_error:
                nsqd.process.clock_error = 0.0
                self.clock_set.append(scheduler.now)
        self.world.until(lambda: not self._busy, seconds)
        for nsqd in self.nsqds:
            self._run_again(nsqd)

    def _later(self, fault: Fault, work: Callable[[], object]) -> None:
        span = self.spans[-1]
        span.ended = math.inf
        self._busy.append(fault)

        def run() -> None:
            try:
                work()
            finally:
                span.ended = scheduler.now
                self._busy.remove(fault)

        scheduler.start(run, f"fault-{fault.kind}", self.world.here)

    def _after(self, fault: Fault, work: Callable[[], object]) -> None:
        def wait() -> None:
            self._wait(fault)
            work()

        self._later(fault, wait)

    def _wait(self, fault: Fault) -> None:
        """Wait until a fault is to end, or everything is mended; begin what happens in its middle."""
        self.world.until(lambda: self.mended, fault.lasts)
        if not fault.number % 2:
            self._then(fault)

    def _nsqd(self, fault: Fault) -> Nsqd:
        return self.nsqds[fault.number % len(self.nsqds)]

    def _run_again(self, daemon: Daemon) -> None:
        """Start a daemon until it runs, unless another thread does so."""
        for _ in range(20):
            if not self.world.until(lambda: not daemon.alive or daemon.running, 60.0):
                break
            if daemon.running or daemon.start():
                return
            if daemon.failure and not self.disk_failed:
                self.not_started.append(f"{daemon.name}: {daemon.failure}")
                return
            if self.mended and isinstance(daemon, Nsqd):
                self._heal_disk(daemon)
            threads.sleep(0.2)
        self.not_started.append(f"{daemon.name}: {daemon.failure}")

    # Daemons.

    def kill(self, fault: Fault) -> None:
        nsqd = self._nsqd(fault)
        if nsqd.running:
            self.lossy.append(scheduler.now)
            nsqd.kill()
            self._after(fault, lambda: self._run_again(nsqd))

    def cut(self, fault: Fault) -> None:
        nsqd = self._nsqd(fault)
        if nsqd.running:
            self.lossy.append(scheduler.now)
            nsqd.cut_power()
            self._after(fault, lambda: self._run_again(nsqd))

    def kill_at(self, fault: Fault) -> None:
        self._at_operation(fault, lambda nsqd: nsqd.kill())

    def cut_at(self, fault: Fault) -> None:
        self._at_operation(fault, lambda nsqd: nsqd.cut_power())

    def _at_operation(self, fault: Fault, end: Callable[[Nsqd], None]) -> None:
        """End the nsqd before one of its next operations that change files."""
        nsqd = self._nsqd(fault)
        if nsqd.name in self._ending:
            return
        at = nsqd.disk.operations + 1 + fault.number**2 // 10
        done: list[None] = []

        def look(operation: str, name: str) -> None:
            if operation in CHANGES and nsqd.disk.operations >= at and nsqd.alive:
                done.append(None)
                self.lossy.append(scheduler.now)
                del self._ending[nsqd.name]
                scheduler.story(f"{nsqd.name} ends before: {operation} {name}")
                end(nsqd)

        self._ending[nsqd.name] = look

        def wait() -> None:
            self.world.until(lambda: done or self.mended, 30.0)
            if done:
                threads.sleep(min(fault.lasts, 1.0))
                self._run_again(nsqd)
            else:
                del self._ending[nsqd.name]

        self._later(fault, wait)

    def _before(self, name: str, operation: str, file: str) -> int:
        if look := self._ending.get(name):
            look(operation, file)
        return next((code for fails in self._failing[name] if (code := fails(operation))), 0)

    def restart(self, fault: Fault, drain: bool = False) -> None:
        nsqd = self._nsqd(fault)

        def work() -> None:
            failed_before = self.disk_failed
            if not nsqd.stop(drain=drain):
                self.unclean.append(f"{nsqd.name} did not stop")
                nsqd.kill()
            elif nsqd.stopped_cleanly is False:
                self.lossy.append(scheduler.now)
                if not (failed_before or self.disk_failed):
                    self.unclean.append(f"{nsqd.name} stopped and lost something, although the disk works")
            if fault.kind == "move":
                network.move(nsqd.host)
            self._wait(fault)
            self._run_again(nsqd)

        if nsqd.running and not nsqd.stopping:
            self._later(fault, work)

    def drain(self, fault: Fault) -> None:
        """Restart an nsqd without its clients noticing: one at a time, which they have found again."""
        drains = [span for span in self.spans[:-1] if span.fault.kind == "drain"]
        if not any(span.ended > scheduler.now - _FOUND_AGAIN for span in drains):
            self.restart(fault, drain=True)

    def move(self, fault: Fault) -> None:
        self.restart(fault)

    def lookupd(self, fault: Fault) -> None:
        if self.lookupds:
            lookupd = self.lookupds[fault.number % len(self.lookupds)]
            if lookupd.running:
                lookupd.kill()
                self._after(fault, lambda: self._run_again(lookupd))

    def stand(self, fault: Fault) -> None:
        """Stop a process for a while, as SIGSTOP does."""
        processes = [daemon.process for daemon in (*self.nsqds, *self.lookupds) if daemon.running]
        processes += [process for process in self.world.clients if process.alive]
        process = processes[fault.number % len(processes)]
        if process is not None:
            self.stood += fault.lasts
            scheduler.stop_process(process)
            self._after(fault, lambda: scheduler.continue_process(process))

    def clock(self, fault: Fault) -> None:
        nsqd = self._nsqd(fault)
        if nsqd.process is not None:
            self.clock_set.append(scheduler.now)
            nsqd.process.clock_error += (fault.number % 3 - 1) * 10 * fault.lasts

    # The network.

    def reset(self, fault: Fault) -> None:
        """Break a connection when something is on its way over it, or a moment later."""
        nsqd, broken = self._nsqd(fault), list[End]()

        def look(end: End) -> None:
            if nsqd.host in (end.host, end.peer and end.peer.host) and not broken:
                broken.append(end)
                scheduler.at(
                    scheduler.now + 4 * network.delay * scheduler.chance.random(), partial(network.reset, end)
                )

        network.watch = look
        self._later(fault, lambda: self.world.until(lambda: broken or self.mended, 1.0))

    def silence(self, fault: Fault) -> None:
        host = self._nsqd(fault).host
        links = [network.link(host, other) for other in network.hosts.values() if other is not host]
        for link in links:
            link.silent = True
        self._after(fault, lambda: [link.mend() for link in links])

    def slow(self, fault: Fault) -> None:
        host = self._nsqd(fault).host
        links = [network.link(host, other) for other in network.hosts.values() if other is not host]
        for link in links:
            link.delay = (0.03, 0.2, 1.0)[fault.number % 3]

        def mend() -> None:
            for link in links:
                link.delay = network.delay

        self._after(fault, mend)

    def unlisted(self, fault: Fault) -> None:
        """Cut an nsqd off from the nsqlookupds, while topics come and go."""
        nsqd = self._nsqd(fault)
        links = [network.link(nsqd.host, lookupd.host) for lookupd in self.lookupds]
        hosts = [lookupd.host for lookupd in self.lookupds]
        for link in links:
            link.silent = True
        for end in [end for end in nsqd.host.ends if end.peer is not None and end.peer.host in hosts]:
            network.reset(end)

        def visit() -> None:
            self.world.until(lambda: self.mended, fault.lasts)
            for link in links:
                link.mend()
            self.world.until(lambda: self.load.listed(nsqd), 20.0, every=0.002)
            for number in range(fault.number, fault.number + 20):  # while it registers
                self.load.visit(nsqd, number, 0.002)

        self._later(fault, visit)

    # Disks.

    def full(self, fault: Fault) -> None:
        nsqd = self._nsqd(fault)
        self.disk_failed = True
        nsqd.disk.capacity = nsqd.disk.used + fault.number * 10
        self._after(fault, lambda: self._heal_disk(nsqd))

    def fsync_fails(self, fault: Fault) -> None:
        left = [(1, 2, 10, 1000)[fault.number % 4]]

        def fail(operation: str) -> int:
            if operation == "fsync" and left[0]:
                left[0] -= 1
                return errno.EIO
            return 0

        self._fail(fault, fail)

    def writes_fail(self, fault: Fault) -> None:
        code = (errno.EIO, errno.ENOSPC)[fault.number % 2]

        def fail(operation: str) -> int:
            return code if operation in CHANGES and scheduler.chance.random() < 0.4 else 0

        self._fail(fault, fail)

    def _fail(self, fault: Fault, fail: Callable[[str], int]) -> None:
        nsqd = self._nsqd(fault)
        self.disk_failed = True
        self._failing[nsqd.name].append(fail)
        self._after(fault, lambda: self._heal_disk(nsqd))

    def short_writes(self, fault: Fault) -> None:
        nsqd = self._nsqd(fault)
        nsqd.disk.short_writes = 0.3
        self._after(fault, lambda: self._heal_disk(nsqd))

    def _heal_disk(self, nsqd: Nsqd) -> None:
        nsqd.disk.capacity, nsqd.disk.short_writes = math.inf, 0.0
        self._failing[nsqd.name].clear()

    # Clients; ``load`` knows them.

    def interrupt(self, fault: Fault) -> None:
        self._later(fault, lambda: self.load.interrupt(fault.number))

    def storm(self, fault: Fault) -> None:
        self.load.interrupts += 5 * fault.number

    def flap(self, fault: Fault) -> None:
        self._later(fault, lambda: self.load.flap(self._nsqd(fault), fault.number, fault.lasts))

    def adjust(self, fault: Fault) -> None:
        self.load.adjust(fault.number, fault.lasts)

    def late(self, fault: Fault) -> None:
        self._later(fault, self.load.begin_late)

    def close_producer(self, fault: Fault) -> None:
        self.load.replace_producer(fault.number)

    def stop_consumer(self, fault: Fault) -> None:
        self.load.replace_consumer(fault.number, fault.lasts)

    def kill_client(self, fault: Fault) -> None:
        self.load.kill_client(fault.number)

    # Topics and channels.

    def guests(self, fault: Fault) -> None:
        self._later(fault, lambda: self.load.visit(self._nsqd(fault), fault.number, fault.lasts))

    def pause(self, fault: Fault) -> None:
        self._later(fault, lambda: self.load.pause(self._nsqd(fault), fault.number, fault.lasts))

    def empty(self, fault: Fault) -> None:
        self._later(fault, lambda: self.load.empty(self._nsqd(fault), fault.number))
