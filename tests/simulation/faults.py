"""Carries out the faults of a plan on a cluster, and mends them."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, partialmethod

from tests.simulation import threads
from tests.simulation.disk import CHANGES
from tests.simulation.load import TIMEOUTS, Client, Load
from tests.simulation.network import End, Host, network
from tests.simulation.plan import OF_DISKS, Fault
from tests.simulation.scheduler import scheduler
from tests.simulation.world import Daemon, Nsqd

_FOUND_AGAIN = 5.0  # seconds after which clients have found an nsqd again


@dataclass
class Span:
    fault: Fault
    began: float
    ended: float = math.inf


class Faults:
    """Each kind of fault is a method of its name. A thread of its own runs it: begins the fault, waits, and
    mends it. What it needs of the package, it does on a thread of the client's process.
    """

    def __init__(self, load: Load) -> None:
        self.world, self.nsqds, self.lookupds, self.load = load.world, load.nsqds, load.lookupds, load
        self.mended = False
        self._flapping: set[str] = set()  # consumers
        # For the auditor.
        self.spans: list[Span] = []
        self.lossy: list[float] = []  # when an nsqd was killed or lost power: its memory is lost
        self.stopped: list[float] = []  # when an nsqd had stopped
        self.clock_set: list[float] = []  # when the wall clock of an nsqd was set

    def do(self, fault: Fault) -> None:
        """Begin a fault."""
        scheduler.story(f"fault {fault}")
        scheduler.note("fault", fault.kind, fault.number)
        span = Span(fault, scheduler.now)
        self.spans.append(span)

        def run() -> None:
            try:
                getattr(self, fault.kind)(fault, self.nsqds[fault.number % len(self.nsqds)])
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

    @property
    def disk_failed(self) -> bool:
        """Whether an operation on a disk may have failed until now."""
        return any(span.fault.kind in OF_DISKS for span in self.spans)

    def fill(self) -> None:
        """Fill the disk until it is mended again."""
        self.mended = False
        self.do(Fault(scheduler.now, "full", lasts=math.inf))

    def mend(self, seconds: float) -> None:
        """Mend everything, and wait until all daemons run again."""
        self.mended = True
        network.mend()
        for nsqd in self.nsqds:
            nsqd.disk.heal()
            if nsqd.host.clock_error:
                nsqd.host.clock_error = 0.0
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
        self.world.problems.append(f"DAEMON {daemon.name} does not start: {daemon.failure}")

    def _end(self, end: Callable[[Nsqd], None], fault: Fault, nsqd: Nsqd) -> None:
        if nsqd.running:
            self.lossy.append(scheduler.now)
            end(nsqd)
            self._wait(fault)
            self._run_again(nsqd)

    def _end_at(self, end: Callable[[Nsqd], None], fault: Fault, nsqd: Nsqd) -> None:
        """End the nsqd before one of its next operations that change files."""
        at = nsqd.disk.operations + 1 + fault.number**2 // 10

        def hook(operation: str, name: str) -> int:
            if operation in CHANGES and nsqd.disk.operations >= at and nsqd.alive:
                self.lossy.append(scheduler.now)
                nsqd.disk.hooks.remove(hook)
                scheduler.story(f"{nsqd.name} ends before: {operation} {name}")
                end(nsqd)
            return 0

        nsqd.disk.hooks.append(hook)
        self.world.until(lambda: hook not in nsqd.disk.hooks or self.mended, 30.0)
        if hook in nsqd.disk.hooks:
            nsqd.disk.hooks.remove(hook)
        else:
            threads.sleep(min(fault.lasts, 1.0))
            self._run_again(nsqd)

    kill, cut = partialmethod(_end, Nsqd.kill), partialmethod(_end, Nsqd.cut_power)
    kill_at, cut_at = partialmethod(_end_at, Nsqd.kill), partialmethod(_end_at, Nsqd.cut_power)

    def restart(self, fault: Fault, nsqd: Nsqd, drain: bool = False) -> None:
        if not nsqd.running or nsqd.stopping:
            return
        if not nsqd.stop(drain=drain):
            self.world.problems.append(f"DAEMON {nsqd.name} did not stop")
            nsqd.kill()
        elif nsqd.stopped_cleanly is False:
            self.lossy.append(scheduler.now)
            if not self.disk_failed:
                self.world.problems.append(f"DAEMON {nsqd.name} did not stop cleanly")
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
        lookupd = self.lookupds[fault.number % len(self.lookupds)]
        if lookupd.running:
            lookupd.kill()
            self._wait(fault)
            self._run_again(lookupd)

    def stand(self, fault: Fault, _nsqd: Nsqd) -> None:
        """Stop a process for a while, as SIGSTOP does."""
        daemons = [daemon.process for daemon in (*self.nsqds, *self.lookupds) if daemon.running]
        processes = [*daemons, *(process for process in self.world.clients if process.alive)]
        processes[fault.number % len(processes)].stop(fault.lasts)
        self._wait(fault)

    def clock(self, fault: Fault, nsqd: Nsqd) -> None:
        self.clock_set.append(scheduler.now)
        nsqd.host.clock_error += (-3, -1, 1, 10)[fault.number % 4] * fault.lasts

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

    def silence(self, fault: Fault, nsqd: Nsqd, others: Sequence[Host] = ()) -> None:
        """Have what an nsqd and other hosts send each other arrive late, or only at the end."""
        others = others or [host for host in network.hosts.values() if host is not nsqd.host]
        links = [network.link(nsqd.host, other) for other in others]
        for link in links:
            if fault.kind == "slow":
                link.delay = (0.03, 0.2, 1.0)[fault.number % 3]
            else:
                link.silent = True
        self._wait(fault)
        for link in links:
            link.mend()
        if fault.kind == "slow":
            threads.sleep(1.5)  # until what was sent slowly has arrived

    slow = silence

    def unlisted(self, fault: Fault, nsqd: Nsqd) -> None:
        """Cut an nsqd off from the nsqlookupds, while topics come and go."""
        hosts = [lookupd.host for lookupd in self.lookupds]
        for end in [end for end in nsqd.host.ends if end.peer is not None and end.peer.host in hosts]:
            network.reset(end)
        self.silence(fault, nsqd, hosts)
        self.world.until(lambda: self.load.listed(nsqd), 20.0, every=0.002)
        for number in range(fault.number, fault.number + 20):  # while it registers
            self.guests(Fault(fault.at, "guests", number, 0.002), nsqd)

    # Disks.

    def full(self, fault: Fault, nsqd: Nsqd) -> None:
        # With the number 0 other programs take what nsqd frees.
        nsqd.disk.capacity = nsqd.disk.used + fault.number * 10 if fault.number else 0
        self._wait(fault)
        nsqd.disk.capacity = math.inf

    def fsync_fails(self, fault: Fault, nsqd: Nsqd) -> None:
        """Have fsyncs fail, of all files or of queues."""
        left, part = [errno.EIO] * (1, 2, 10, 1000)[fault.number % 4], ("", "queue.0")[fault.number % 3 > 0]
        self._fail(
            fault, nsqd, lambda what, name: left.pop() if what == "fsync" and left and part in name else 0
        )

    def writes_fail(self, fault: Fault, nsqd: Nsqd) -> None:
        code, chance = (errno.EIO, errno.ENOSPC)[fault.number % 2], scheduler.chance.random
        self._fail(fault, nsqd, lambda operation, _: code if operation in CHANGES and chance() < 0.4 else 0)

    def _fail(self, fault: Fault, nsqd: Nsqd, hook: Callable[[str, str], int]) -> None:
        failed = list[int]()

        def fail(operation: str, name: str) -> int:
            failed.append(hook(operation, name))
            return failed[-1]

        nsqd.disk.hooks.append(fail)
        self.world.until(lambda: any(failed) or self.mended, 5.0)
        self._wait(fault)
        with suppress(ValueError):  # everything is mended
            nsqd.disk.hooks.remove(fail)

    # Clients.

    def storm(self, fault: Fault, _nsqd: Nsqd) -> None:
        """Interrupt the next calls of users."""
        self.load.interrupts += 5 * fault.number

    def _one_of(self, clients: Sequence[Client], fault: Fault) -> Client | None:
        """Choose a client that works, if there is one."""
        working = [client for client in clients if client.working]
        return working[fault.number % len(working)] if working else None

    def flap(self, fault: Fault, nsqd: Nsqd) -> None:
        """Remove an nsqd from a consumer, add it again a while later, and so on."""
        client, chance = self._one_of(self.load.consumers, fault), self.load.chance
        if client is None or len(self.nsqds) == 1 or self.load.plan.found_by_lookup:
            return
        consumer, name = client.made, client.process.name

        def work() -> None:
            consumer.wait_until_connected(1.0)
            for _ in range(1 + fault.number % 8):
                consumer.remove_nsqd(nsqd.tcp_address)
                threads.sleep(0.7)
                self.load.removed.append((name, nsqd.tcp_address, scheduler.now))
                consumer.add_nsqd(nsqd.tcp_address)
                threads.sleep(5 * network.delay * chance.random())

        if name not in self._flapping:  # it needs one of its nsqds
            self._flapping.add(name)
            thread = scheduler.start(work, fault.kind, client.process)
            self.world.until(lambda: not thread.alive, math.inf)
            self._flapping.discard(name)

    def late(self, _fault: Fault, _nsqd: Nsqd) -> None:
        self.load.begin_late()

    def close_producer(self, fault: Fault, _nsqd: Nsqd) -> None:
        """Have a program go on with another producer, and close the one it has."""

        def work(client: Client) -> None:
            made = self.load.new_producer()
            before, client.made = client.made, made
            self.load.ended("close", before, TIMEOUTS[fault.number % len(TIMEOUTS)])

        if client := self._one_of(self.load.producers, fault):
            scheduler.start(partial(work, client), fault.kind, client.process)

    def stop_consumer(self, fault: Fault, _nsqd: Nsqd) -> None:
        """Stop a consumer, and have another one begin after a while."""

        def work(client: Client) -> None:
            self.load.ended("stop", client.made, TIMEOUTS[fault.number % len(TIMEOUTS)])
            self.world.until(lambda: self.load.over, fault.lasts)
            self.load.replace(client)

        if client := self._one_of(self.load.consumers, fault):
            client.stopping = True
            scheduler.start(partial(work, client), fault.kind, client.process)

    def kill_client(self, fault: Fault, _nsqd: Nsqd) -> None:
        client = self._one_of([*self.load.producers, *self.load.consumers], fault)
        if client is not None and not self.load.over:
            self.world.kill_process(client.process)
            self.load.replace(client)

    # Topics and channels.

    def guests(self, fault: Fault, nsqd: Nsqd) -> None:
        """Make, use and delete a topic, one of its own or one that others use."""
        number, api = fault.number, self.load.api(nsqd)
        topic, channel = f"guest{number % 3}", f"c{number % 5}"
        if own := number % 8 > 3:
            topic = f"guest-{next(self.load.numbers)}"
        guest = (nsqd, topic, channel)
        with suppress(self.load.nsq.NsqError):  # it is down, or the topic is gone already
            if number % 2:
                api.create_topic(topic)
                api.create_channel(topic, channel)
                if own:
                    self.load.guests[guest] = (True, scheduler.now)
            for i in range(number % 7):
                api.publish(topic, b"guest %d" % i, defer=0.5 if i % 3 == 2 else 0)
            if number % 4 == 3:
                return  # it stays
            threads.sleep(fault.lasts / 2)
            there = self.load.guests.pop(guest, None)
            if number % 3 == 2:
                api.delete_channel(topic, channel)
            else:
                (api.empty_topic, api.delete_topic)[number % 3](topic)
            if there:
                self.load.guests[guest] = (number % 3 == 0, scheduler.now)

    def empty(self, fault: Fault, nsqd: Nsqd) -> None:
        """Empty a channel: messages that were published before may be lost."""
        topic, channels = list(self.load.plan.topics.items())[fault.number % len(self.load.plan.topics)]
        channel = channels[fault.number % len(channels)]
        self.load.emptied[f"{topic}/{channel}"] = math.inf
        with suppress(self.load.nsq.NsqError):  # not answered: it may be carried out at any time
            self.load.api(nsqd).empty_channel(topic, channel)
            self.load.emptied[f"{topic}/{channel}"] = scheduler.now
