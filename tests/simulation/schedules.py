"""Scripted schedules: runs in which the steps and the faults are written down by name.

A seed means nothing once the package has changed. A failure that a seed has found is therefore kept as a
schedule: a method that sets up what is needed, has threads stand still at a named statement, lets a fault
happen before a named operation, and says what must hold. No thread is preempted but where it says so. This
module imports the package: import it after ``world.install``.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from typing import Any

import nsq
from nsq.http.nsqd import NsqdApi
from tests.simulation import code
from tests.simulation.scheduler import scheduler
from tests.simulation.threads import sleep
from tests.simulation.world import Nsqd, World

TOPIC, CHANNEL = "orders", "billing"
#: Larger than a sector: of each a power cut can leave a part.
BODIES = [b"%04d" % number + b"x" * 1200 for number in range(6)]


class Script:
    """What schedules use."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.at: list[float] = []  # when the messages came that ``received`` has returned
        self.closed: list[nsq.Producer] = []  # those that are closed at the end
        self._held: dict[tuple[str, int], float] = {}
        scheduler.held = lambda module, site: self._held.pop((module, site), 0.0)

    def check(self, holds: object, what: str) -> None:
        if not holds:
            self.world.problems.append(f"does not hold: {what}")

    def nsqd(self, *, channel: bool = False, **options: Any) -> tuple[Nsqd, nsq.Producer]:
        """Start an nsqd, with the channel if that is asked for; return it, and a producer for it."""
        nsqd = Nsqd(self.world, "nsqd", **options)
        self.start(nsqd)
        if channel:
            NsqdApi(nsqd.http_address).create_topic(TOPIC)
            NsqdApi(nsqd.http_address).create_channel(TOPIC, CHANNEL)
        self.closed.append(nsq.Producer(nsqd.tcp_address))
        return nsqd, self.closed[-1]

    def start(self, nsqd: Nsqd) -> None:
        self.check(nsqd.start(), f"{nsqd.name} starts ({nsqd.failure})")

    def thread(self, work: Callable[[], object]) -> None:
        """Run a function on a further thread."""
        scheduler.start(work, "thread", self.world.here)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition, which must come."""
        self.check(self.world.until(condition, 30.0, every=0.001), f"{what} within 30 s")

    def consumer(
        self, nsqd: Nsqd, handler: Callable[[nsq.Message], object], threads: int = 1
    ) -> nsq.Consumer:
        consumer = nsq.Consumer(TOPIC, CHANNEL, nsqd=nsqd.tcp_address, max_in_flight=100, max_attempts=0)
        consumer.add_handler(handler, threads=threads)
        return consumer.start()

    def received(self, nsqd: Nsqd, count: int, seconds: float = 10.0) -> list[bytes]:
        """Consume until so many messages have come, or for ``seconds``; return their bodies."""
        bodies: list[bytes] = []
        self.at = []

        def handle(message: nsq.Message) -> None:
            bodies.append(message.body)
            self.at.append(scheduler.now)

        consumer = self.consumer(nsqd, handle)
        self.world.until(lambda: len(bodies) >= count, seconds)
        consumer.stop(0.1)
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

    def tear(self, nsqd: Nsqd, name: str) -> None:
        """Cut the power before the next fsync of such a file: every other sector is new."""
        self.before(nsqd, "fsync", name, lambda: nsqd.cut_power(holes=True))


class Schedules(Script):
    """Each method is one."""

    def a_file_that_fills_up_during_a_sync_round_is_synced(self) -> None:
        """A round syncs a file up to where it was read. What is written to it meanwhile belongs to the next
        round, also when the queue goes on in another file.
        """
        nsqd, producer = self.nsqd(durable=True, max_bytes_per_file=1500)
        self.hold("fsync:sync_path", "os.close(descriptor)", 0.5)
        bodies = [body[:400] for body in BODIES]
        first = producer.publish_async(TOPIC, bodies[0])
        sleep(0.1)  # its round stands still
        for future in [first, *(producer.publish_async(TOPIC, body) for body in bodies[1:])]:
            future.result(10)
        nsqd.cut_power()
        self.check_received(nsqd, bodies)

    def a_publish_over_http_that_waits_for_its_fsync_is_answered_by_a_stop(self) -> None:
        """A stop waits for the fsync of what was published, and only then closes HTTP connections."""
        nsqd, _ = self.nsqd(durable=True)
        self.hold("fsync:sync_path", "os.fsync(descriptor)", 1.0)
        ends: list[str] = []

        def publish() -> None:
            try:
                NsqdApi(nsqd.http_address, timeout=5.0).publish(TOPIC, b"one")
                ends.append("stored")
            except nsq.NsqError as error:
                ends.append(repr(error))

        self.thread(publish)
        sleep(0.1)
        self.check(nsqd.stop(), "nsqd stops")
        self.until(lambda: ends, "the publish ends")
        self.check(ends == ["stored"], f"the publish is confirmed: {ends}")

    def time_that_passes_while_a_file_is_read_makes_no_message_early(self) -> None:
        """Due times are converted from the wall clock to the monotonic one by a look at both. nsqd may stand
        still between the two looks.
        """
        nsqd, producer = self.nsqd(durable=True, channel=True)
        due = scheduler.now + 4.0
        producer.publish(TOPIC, b"late", defer=4.0)
        nsqd.stop()
        self.start(nsqd)
        self.hold("daemons.nsqd.storage.deferred:DeferredOnDisk._read_next_file", "wall = ", 0.015)
        self.check(self.received(nsqd, 1) == [b"late"], "the message comes")
        self.check(self.at[0] >= due, f"it comes when it is due, not {due - self.at[0]:.3f} s before")

    def what_a_stop_writes_again_and_a_power_cut_tears_does_not_replace_it(self) -> None:
        """A stop writes messages in flight again, with attempts. Their older records count until then."""
        nsqd, producer = self.nsqd(durable=True, channel=True, max_bytes_per_file=1500)
        producer.multi_publish(TOPIC, BODIES)
        delivered: list[bytes] = []

        def handle(message: nsq.Message) -> None:
            delivered.append(message.body)
            sleep(20)

        consumer = self.consumer(nsqd, handle, threads=len(BODIES))
        self.until(lambda: len(delivered) == len(BODIES), "all are in flight")
        self.tear(nsqd, f"{CHANNEL}.diskqueue")
        nsqd.stop()
        consumer.stop(0.1)
        self.check_received(nsqd, BODIES)

    def what_a_topic_hands_over_and_a_power_cut_tears_comes_again(self) -> None:
        """The topic has a message until its channels have fsynced it."""
        nsqd, producer = self.nsqd(durable=True, max_bytes_per_file=1500)
        producer.multi_publish(TOPIC, BODIES)
        self.tear(nsqd, f"{CHANNEL}.diskqueue")
        self.thread(lambda: NsqdApi(nsqd.http_address, timeout=5.0).create_channel(TOPIC, CHANNEL))
        self.check_received(nsqd, BODIES)

    def what_is_requeued_with_a_delay_and_a_power_cut_tears_does_not_replace_it(self) -> None:
        """A requeue writes to a file of deferred messages. The record in the queue counts until then."""
        nsqd, producer = self.nsqd(durable=True, channel=True)
        producer.multi_publish(TOPIC, BODIES)
        self.tear(nsqd, ".deferred.")
        consumer = self.consumer(nsqd, lambda message: message.requeue(2.0))
        self.until(lambda: not nsqd.alive, "the power goes")
        consumer.stop(0.1)
        self.check_received(nsqd, BODIES)

    def deferred_messages_whose_file_cannot_be_removed_keep_their_due_times(self) -> None:
        """nsqd removes a file that it has read, first the records, then the index with the due times."""
        nsqd, producer = self.nsqd(channel=True)
        due = scheduler.now + 8.0
        producer.publish(TOPIC, b"late", defer=8.0)
        failed: list[int] = []

        def fail() -> int:
            failed.append(errno.EIO)
            return errno.EIO

        nsqd.stop()
        self.before(nsqd, "unlink", ".deferred.", fail)
        self.start(nsqd)
        self.until(lambda: failed, "nsqd reads the file shortly before the message is due")
        nsqd.stop()
        self.start(nsqd)
        self.received(nsqd, 1, 12.0)
        self.check(self.at, "the message comes")
        self.check(min(self.at, default=due) >= due, f"it comes when it is due: {self.at}, not {due}")

    def a_publish_whose_write_cannot_be_undone_is_not_called_refused(self) -> None:
        """nsqd removes what a failed write left. If it cannot, its next start may find the message."""
        nsqd, producer = self.nsqd(durable=True, channel=True)
        sleep(1)

        def fail(operation: str, name: str) -> int:
            meta = operation == "pwrite" and f"{CHANNEL}.diskqueue.meta" in name
            return errno.EIO if meta or operation == "truncate" else 0

        nsqd.disk.hooks.append(fail)
        perhaps: list[bool] = []
        try:
            producer.publish(TOPIC, b"one", timeout=3.0)
        except nsq.NsqError as error:
            perhaps.append(error.maybe_stored)
        nsqd.kill()
        nsqd.disk.heal()
        self.start(nsqd)
        received = self.received(nsqd, 1, 3.0)
        self.check(perhaps, "the publish fails")
        self.check(all(perhaps) or not received, f"what was called refused is not delivered: {received}")


def perform(name: str, tell: Callable[[str], None] | None = None) -> list[str]:
    """Run a schedule in this process, which must not have run anything; return what does not hold."""
    world = World(name)
    script, scheduler.tell = Schedules(world), tell

    def scenario() -> None:
        getattr(script, name)()
        for producer in script.closed:
            producer.close()

    scheduler.pace = math.inf  # no thread is preempted
    world.run(scenario)
    return world.problems
