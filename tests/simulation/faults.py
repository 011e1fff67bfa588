"""Carries out the faults of a plan on a cluster, and mends them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation import threads
from tests.simulation.disk import CHANGES
from tests.simulation.network import network
from tests.simulation.plan import Fault
from tests.simulation.scheduler import scheduler
from tests.simulation.world import Daemon, Nsqd, World


class Faults:
    """``happened`` counts the faults by kind. Each kind is a method of its name.

    ``lossy`` has the times of kills and power cuts: what a default nsqd had in memory then is lost.
    """

    def __init__(self, world: World, nsqds: Sequence[Nsqd], lookupds: Sequence[Daemon], load: Any) -> None:
        self.world, self.nsqds, self.lookupds, self.load = world, nsqds, lookupds, load
        self.happened: dict[str, int] = {}
        self.lossy: list[float] = []
        self.stood = 0.0
        """Seconds for which processes stood still."""
        self.disk_failed = self.clock_changed = False
        self.not_started: list[str] = []
        """Starts that failed although the disk worked."""
        self.unclean: list[str] = []
        self.mended = False
        self._busy: dict[str, int] = {}

    def do(self, fault: Fault) -> None:
        """Begin a fault; what must be mended is, on a thread of its own."""
        self.happened[fault.kind] = self.happened.get(fault.kind, 0) + 1
        scheduler.story(f"fault {fault}")
        scheduler.note("fault", fault.kind, fault.number)
        getattr(self, fault.kind)(fault)

    def mend(self, seconds: float) -> None:
        """Mend everything, and wait until all daemons run again."""
        self.mended = True
        for link in network._links.values():
            link.mend()
            link.delay = network.delay
        for nsqd in self.nsqds:
            self._heal_disk(nsqd)
            if nsqd.process is not None:
                nsqd.process.clock_error = 0.0
        self.world.until(lambda: not self._busy, seconds)
        for nsqd in self.nsqds:
            self._run_again(nsqd)

    def _later(self, name: str, work: Callable[[], object]) -> None:
        self._busy[name] = self._busy.get(name, 0) + 1

        def run() -> None:
            try:
                work()
            finally:
                self._busy[name] -= 1
                if not self._busy[name]:
                    del self._busy[name]

        scheduler.start(run, f"fault-{name}", scheduler.me().process)

    def _after(self, fault: Fault, work: Callable[[], object]) -> None:
        def wait() -> None:
            self.world.until(lambda: self.mended, fault.lasts)
            work()

        self._later(f"{fault.kind}-{fault.number}", wait)

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
        disk, before = nsqd.disk, nsqd.disk.fail
        at = disk.operations + fault.number
        done: list[None] = []

        def fail(operation: str, name: str) -> int:
            if operation in CHANGES and disk.operations >= at and not done:
                done.append(None)
                self.lossy.append(scheduler.now)
                disk.fail = before
                scheduler.story(f"{nsqd.name} ends before: {operation} {name}")
                end(nsqd)
            return before(operation, name)

        disk.fail = fail

        def wait() -> None:
            self.world.until(lambda: done or self.mended, 30.0)
            if not done and disk.fail is fail:
                disk.fail = before
            if done:
                threads.sleep(min(fault.lasts, 1.0))
                self._run_again(nsqd)

        self._later(f"at-{fault.number}", wait)

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
            self.world.until(lambda: self.mended, fault.lasts)
            self._run_again(nsqd)

        if nsqd.running and not nsqd.stopping:
            self._later(f"restart-{nsqd.name}", work)

    def drain(self, fault: Fault) -> None:
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
            self.clock_changed = True
            nsqd.process.clock_error += (fault.number % 3 - 1) * 10 * fault.lasts

    # The network.

    def reset(self, fault: Fault) -> None:
        ends = [end for nsqd in self.nsqds for end in nsqd.host.ends]
        if ends:
            network.reset(ends[fault.number % len(ends)])

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
            link.delay = fault.lasts / 3

        def mend() -> None:
            for link in links:
                link.delay = network.delay

        self._after(fault, mend)

    # Disks.

    def full(self, fault: Fault) -> None:
        nsqd = self._nsqd(fault)
        self.disk_failed = True
        nsqd.disk.capacity = nsqd.disk.used + fault.number * 10
        self._after(fault, lambda: self._heal_disk(nsqd))

    def fsync_fails(self, fault: Fault) -> None:
        left = [1 + fault.number % 4]

        def fail(operation: str, _name: str) -> int:
            if operation == "fsync" and left[0]:
                left[0] -= 1
                return errno.EIO
            return 0

        self._failing(fault, fail)

    def writes_fail(self, fault: Fault) -> None:
        code = (errno.EIO, errno.ENOSPC)[fault.number % 2]

        def fail(operation: str, _name: str) -> int:
            return code if operation in CHANGES and scheduler.chance.random() < 0.4 else 0

        self._failing(fault, fail)

    def _failing(self, fault: Fault, fail: Callable[[str, str], int]) -> None:
        nsqd = self._nsqd(fault)
        self.disk_failed = True
        nsqd.disk.fail = fail
        self._after(fault, lambda: self._heal_disk(nsqd))

    def short_writes(self, fault: Fault) -> None:
        nsqd = self._nsqd(fault)
        nsqd.disk.short_writes = 0.3
        self._after(fault, lambda: self._heal_disk(nsqd))

    def _heal_disk(self, nsqd: Nsqd) -> None:
        nsqd.disk.heal()

    # Clients; ``load`` knows them.

    def interrupt(self, fault: Fault) -> None:
        self._later("interrupt", lambda: self.load.interrupt(fault.number))

    def adjust(self, fault: Fault) -> None:
        self.load.adjust(fault.number, fault.lasts)

    def late(self, _fault: Fault) -> None:
        self.load.begin_late()

    def close_producer(self, fault: Fault) -> None:
        self.load.replace_producer(fault.number)

    def stop_consumer(self, fault: Fault) -> None:
        self.load.replace_consumer(fault.number, fault.lasts)

    def kill_client(self, fault: Fault) -> None:
        self.load.kill_client(fault.number)

    # Topics and channels.

    def guests(self, fault: Fault) -> None:
        self._later("guests", lambda: self.load.visit(self._nsqd(fault), fault.number, fault.lasts))

    def pause(self, fault: Fault) -> None:
        self._later("pause", lambda: self.load.pause(self._nsqd(fault), fault.number, fault.lasts))
