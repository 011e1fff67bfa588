"""The schedules: each is a failure that was found once, and must not come back. See ``script.py``."""

from __future__ import annotations

import nsq
from tests.simulation.scheduler import scheduler
from tests.simulation.script import BROKEN, CHANNEL, TOPIC, Script, schedule
from tests.simulation.threads import sleep

#: Larger than a sector: of each a power cut can leave a part.
BODIES = [b"%04d" % number + b"x" * 1200 for number in range(6)]


@schedule
def a_file_that_fills_up_during_a_sync_round_is_synced(script: Script) -> None:
    """A round syncs a file up to where it was read. What is written to it meanwhile belongs to the next
    round, also when the queue goes on in another file.
    """
    nsqd, producer = script.nsqd(durable=True, max_bytes_per_file=1500)
    script.hold("fsync:sync_path", "os.close(descriptor)", 0.5)
    bodies = [body[:400] for body in BODIES]
    first = producer.publish_async(TOPIC, bodies[0])
    sleep(0.1)  # its round stands still
    for future in [first, *(producer.publish_async(TOPIC, body) for body in bodies[1:])]:
        future.result(10)
    nsqd.cut_power()
    script.check_received(nsqd, bodies)


@schedule
def a_publish_over_http_that_waits_for_its_fsync_is_answered_by_a_stop(script: Script) -> None:
    """A stop waits for the fsync of what was published, and only then closes HTTP connections."""
    nsqd, _ = script.nsqd(durable=True)
    script.hold("fsync:sync_path", "os.fsync(descriptor)", 1.0)
    ends: list[str] = []

    def publish() -> None:
        try:
            script.api(nsqd).publish(TOPIC, b"one")
            ends.append("stored")
        except nsq.NsqError as error:
            ends.append(repr(error))

    script.thread(publish)
    sleep(0.1)
    script.check(nsqd.stop(), "nsqd stops")
    script.until(lambda: ends, "the publish ends")
    script.check(ends == ["stored"], f"the publish is confirmed: {ends}")


@schedule
def time_that_passes_while_a_file_is_read_makes_no_message_early(script: Script) -> None:
    """Due times are converted from the wall clock to the monotonic one by a look at both. nsqd may stand
    still between the two looks.
    """
    nsqd, producer = script.nsqd(durable=True, channel=True)
    due = scheduler.now + 4.0
    producer.publish(TOPIC, b"late", defer=4.0)
    nsqd.stop()
    script.start(nsqd)
    script.hold("daemons.nsqd.storage.deferred:DeferredOnDisk._read_next_file", "wall = ", 0.015)
    script.check(script.received(nsqd, 1) == [b"late"], "the message comes")
    script.check(script.at[0] >= due, f"it comes when it is due, not {due - script.at[0]:.3f} s before")


@schedule
def what_a_stop_writes_again_and_a_power_cut_tears_does_not_replace_it(script: Script) -> None:
    """A stop writes messages in flight again, with their attempts. Their older records count until then."""
    nsqd, producer = script.nsqd(durable=True, channel=True, max_bytes_per_file=1500)
    producer.multi_publish(TOPIC, BODIES)
    delivered: list[bytes] = []

    def handle(message: nsq.Message) -> None:
        delivered.append(message.body)
        sleep(20)

    with script.consumer(nsqd, handle, threads=len(BODIES)):
        script.until(lambda: len(delivered) == len(BODIES), "all are in flight")
        script.before(nsqd, "fsync", f"{CHANNEL}.diskqueue", lambda: nsqd.cut_power(holes=True))
        nsqd.stop()
    script.check_received(nsqd, BODIES)


@schedule
def what_a_topic_hands_over_and_a_power_cut_tears_comes_again(script: Script) -> None:
    """The topic has a message until its channels have fsynced it."""
    nsqd, producer = script.nsqd(durable=True, max_bytes_per_file=1500)
    producer.multi_publish(TOPIC, BODIES)
    script.before(nsqd, "fsync", f"{CHANNEL}.diskqueue", lambda: nsqd.cut_power(holes=True))
    script.thread(lambda: script.api(nsqd).create_channel(TOPIC, CHANNEL))
    script.check_received(nsqd, BODIES)


@schedule
def what_is_requeued_with_a_delay_and_a_power_cut_tears_does_not_replace_it(script: Script) -> None:
    """A requeue writes the message to a file of deferred ones. Its record in the queue counts until then."""
    nsqd, producer = script.nsqd(durable=True, channel=True)
    producer.multi_publish(TOPIC, BODIES)
    script.before(nsqd, "fsync", ".deferred.", lambda: nsqd.cut_power(holes=True))
    with script.consumer(nsqd, lambda message: message.requeue(2.0)):
        script.until(lambda: not nsqd.alive, "the power goes")
    script.check_received(nsqd, BODIES)


@schedule
def deferred_messages_whose_file_cannot_be_removed_keep_their_due_times(script: Script) -> None:
    """nsqd removes a file that it has read, first the records, then the index with the due times."""
    nsqd, producer = script.nsqd(channel=True)
    due = scheduler.now + 8.0
    producer.publish(TOPIC, b"late", defer=8.0)
    failed: list[int] = []

    def fail() -> int:
        failed.append(BROKEN)
        return BROKEN

    nsqd.stop()
    script.before(nsqd, "unlink", ".deferred.", fail)
    script.start(nsqd)
    script.until(lambda: failed, "nsqd reads the file shortly before the message is due")
    nsqd.stop()
    script.start(nsqd)
    script.received(nsqd, 1, 12.0)
    script.check(script.at, "the message comes")
    script.check(min(script.at, default=due) >= due, f"it comes when it is due: {script.at}, not {due}")


@schedule
def a_publish_whose_write_cannot_be_undone_is_not_called_refused(script: Script) -> None:
    """nsqd removes what a failed write left. If it cannot, its next start may find the message."""
    nsqd, producer = script.nsqd(durable=True, channel=True)
    sleep(1)

    def fail(operation: str, name: str) -> int:
        meta = operation == "pwrite" and f"{CHANNEL}.diskqueue.meta" in name
        return BROKEN if meta or operation == "truncate" else 0

    nsqd.disk.hooks.append(fail)
    perhaps: list[bool] = []
    try:
        producer.publish(TOPIC, b"one", timeout=3.0)
    except nsq.NsqError as error:
        perhaps.append(error.maybe_stored)
    nsqd.kill()
    nsqd.disk.heal()
    script.start(nsqd)
    received = script.received(nsqd, 1, 3.0)
    script.check(perhaps, "the publish fails")
    script.check(all(perhaps) or not received, f"what was called refused is not delivered: {received}")
