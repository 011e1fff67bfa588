"""The schedules: each is a failure that was found once, and must not come back. See ``script.py``."""

from __future__ import annotations

import nsq
from nsq.http.nsqd import NsqdApi
from tests.simulation.script import BROKEN, Script, schedule
from tests.simulation.world import Nsqd


@schedule
def a_file_that_fills_up_during_a_sync_round_is_synced(script: Script) -> None:
    """A round syncs a file up to where it was read. What is written to it meanwhile belongs to the next
    round, also when the queue goes on in another file.
    """
    nsqd = script.nsqd(durable=True, max_bytes_per_file=1500)
    script.hold("fsync:sync_path", "os.close(descriptor)", 0.5)
    producer = nsq.Producer(nsqd.tcp_address)
    bodies = [b"%04d" % number + b"x" * 400 for number in range(8)]
    first = producer.publish_async("orders", bodies[0])
    script.sleep(0.1)  # its round stands still
    rest = [producer.publish_async("orders", body) for body in bodies[1:]]
    for future in [first, *rest]:
        future.result(10)
    nsqd.cut_power()
    script.restart(nsqd)
    received = script.received(nsqd, "orders", "billing", len(bodies))
    script.check(set(bodies) <= set(received), f"every confirmed message is there: {len(set(received))} of 8")
    producer.close()


@schedule
def a_publish_over_http_that_waits_for_its_fsync_is_answered_by_a_stop(script: Script) -> None:
    """A stop waits for the fsync of what was published, and only then closes HTTP connections."""
    nsqd = script.nsqd(durable=True)
    script.hold("fsync:sync_path", "os.fsync(descriptor)", 1.0)
    api = NsqdApi(nsqd.http_address, timeout=5.0)
    ends: list[str] = []

    def publish() -> None:
        try:
            api.publish("orders", b"one")
            ends.append("stored")
        except nsq.NsqError as error:
            ends.append(repr(error))

    script.thread(publish)
    script.sleep(0.1)
    script.check(nsqd.stop(), "nsqd stops")
    script.until(lambda: ends, "the publish ends")
    script.check(ends == ["stored"], f"the publish is confirmed: {ends}")


@schedule
def time_that_passes_while_a_file_is_read_makes_no_message_early(script: Script) -> None:
    """Due times are converted from the wall clock to the monotonic one by a look at both. nsqd may stand
    still between the two looks.
    """
    nsqd = script.nsqd(durable=True)
    producer = nsq.Producer(nsqd.tcp_address)
    api = NsqdApi(nsqd.http_address)
    api.create_topic("orders")
    api.create_channel("orders", "billing")
    due = script.now + 4.0
    producer.publish("orders", b"late", defer=4.0)
    nsqd.stop()
    script.restart(nsqd)
    script.hold("daemons.nsqd.storage.deferred:DeferredOnDisk._read_next_file", "", 0.015)
    bodies = script.received(nsqd, "orders", "billing", 1)
    script.check(bodies == [b"late"], "the message comes")
    script.check(script.at[0] >= due, f"it comes when it is due, not {due - script.at[0]:.3f} s before")
    producer.close()


def _bodies() -> list[bytes]:
    """Return bodies larger than a sector, of which a power cut can leave a part."""
    return [b"%04d" % number + b"x" * 1200 for number in range(6)]


def _receive_all_after_a_tear(script: Script, nsqd: Nsqd, bodies: list[bytes]) -> None:
    script.until(lambda: not nsqd.alive, "the power goes")
    script.restart(nsqd)
    received = script.received(nsqd, "orders", "billing", len(bodies))
    missing = set(bodies) - set(received)
    script.check(not missing, f"every confirmed message comes whole: {len(missing)} of {len(bodies)} do not")


@schedule
def what_a_stop_writes_again_and_a_power_cut_tears_does_not_replace_it(script: Script) -> None:
    """A stop writes messages in flight again, with their attempts. Their older records count until then."""
    nsqd = script.nsqd(durable=True, max_bytes_per_file=1500)
    producer = nsq.Producer(nsqd.tcp_address)
    NsqdApi(nsqd.http_address).create_topic("orders")
    NsqdApi(nsqd.http_address).create_channel("orders", "billing")
    producer.multi_publish("orders", _bodies())
    delivered: list[bytes] = []

    def handle(message: nsq.Message) -> None:
        delivered.append(message.body)
        script.sleep(20)

    consumer = nsq.Consumer("orders", "billing", nsqd=nsqd.tcp_address, max_in_flight=100)
    consumer.add_handler(handle, threads=len(_bodies()))
    consumer.start()
    script.until(lambda: len(delivered) == len(_bodies()), "all are in flight")
    script.before(nsqd, "fsync", "billing.diskqueue", lambda: nsqd.cut_power(holes=True))
    nsqd.stop()
    consumer.stop(0.1)
    _receive_all_after_a_tear(script, nsqd, _bodies())
    producer.close()


@schedule
def what_a_topic_hands_over_and_a_power_cut_tears_comes_again(script: Script) -> None:
    """The topic has a message until its channels have fsynced it."""
    nsqd = script.nsqd(durable=True, max_bytes_per_file=1500)
    producer = nsq.Producer(nsqd.tcp_address)
    producer.multi_publish("orders", _bodies())
    script.before(nsqd, "fsync", "billing.diskqueue", lambda: nsqd.cut_power(holes=True))
    script.thread(lambda: NsqdApi(nsqd.http_address, timeout=1.0).create_channel("orders", "billing"))
    _receive_all_after_a_tear(script, nsqd, _bodies())
    producer.close()


@schedule
def what_is_requeued_with_a_delay_and_a_power_cut_tears_does_not_replace_it(script: Script) -> None:
    """A requeue writes the message to a file of deferred ones. Its record in the queue counts until then."""
    nsqd = script.nsqd(durable=True)
    producer = nsq.Producer(nsqd.tcp_address)
    NsqdApi(nsqd.http_address).create_topic("orders")
    NsqdApi(nsqd.http_address).create_channel("orders", "billing")
    producer.multi_publish("orders", _bodies())
    script.before(nsqd, "fsync", ".deferred.", lambda: nsqd.cut_power(holes=True))
    consumer = nsq.Consumer("orders", "billing", nsqd=nsqd.tcp_address, max_in_flight=100)
    consumer.add_handler(lambda message: message.requeue(2.0))
    consumer.start()
    script.until(lambda: not nsqd.alive, "the power goes")
    consumer.stop(0.1)
    _receive_all_after_a_tear(script, nsqd, _bodies())
    producer.close()


@schedule
def deferred_messages_whose_file_cannot_be_removed_keep_their_due_times(script: Script) -> None:
    """nsqd removes a file that it has read, first the records, then the index with the due times."""
    nsqd = script.nsqd()
    producer = nsq.Producer(nsqd.tcp_address)
    NsqdApi(nsqd.http_address).create_topic("orders")
    NsqdApi(nsqd.http_address).create_channel("orders", "billing")
    due = script.now + 8.0
    producer.publish("orders", b"late", defer=8.0)
    failed: list[int] = []

    def fail() -> int:
        failed.append(BROKEN)
        return BROKEN

    nsqd.stop()
    script.before(nsqd, "unlink", ".deferred.", fail)
    script.restart(nsqd)
    script.until(lambda: failed, "nsqd reads the file shortly before the message is due")
    nsqd.stop()
    script.restart(nsqd)
    script.received(nsqd, "orders", "billing", 1, 12.0)
    script.check(script.at, "the message comes")
    script.check(min(script.at, default=due) >= due, f"it comes when it is due: {script.at}, not {due}")
    producer.close()


@schedule
def a_publish_whose_write_cannot_be_undone_is_not_called_refused(script: Script) -> None:
    """nsqd removes what a failed write left. If it cannot, its next start may find the message."""
    nsqd = script.nsqd(durable=True)
    NsqdApi(nsqd.http_address).create_topic("orders")
    NsqdApi(nsqd.http_address).create_channel("orders", "billing")
    script.sleep(1)
    producer = nsq.Producer(nsqd.tcp_address)
    nsqd.disk.hooks.append(
        lambda operation, name: (
            BROKEN
            if operation == "truncate" or (operation == "pwrite" and "billing.diskqueue.meta" in name)
            else 0
        )
    )
    perhaps: list[bool] = []
    try:
        producer.publish("orders", b"one", timeout=3.0)
    except nsq.NsqError as error:
        perhaps.append(error.maybe_stored)
    nsqd.kill()
    nsqd.disk.heal()
    script.restart(nsqd)
    received = script.received(nsqd, "orders", "billing", 1, 3.0)
    script.check(perhaps, "the publish fails")
    script.check(all(perhaps) or not received, f"what was called refused is not delivered: {received}")
    producer.close()
