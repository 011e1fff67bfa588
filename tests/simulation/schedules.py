"""The schedules: each is a failure that was found once, and must not come back. See ``script.py``."""

from __future__ import annotations

import nsq
from nsq.http.nsqd import NsqdApi
from tests.simulation.script import Script, schedule


@schedule
def a_file_that_fills_up_during_a_sync_round_is_synced(script: Script) -> None:
    """A round syncs a file up to where it was read. What is written to it meanwhile belongs to the next
    round, also when the queue goes on in another file.
    """
    nsqd = script.nsqd(durable=True, max_bytes_per_file=1500)
    script.hold("daemons.nsqd.disk.syncing:sync_file", "os.close(descriptor)", 0.5)
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
    script.hold("daemons.nsqd.disk.syncing:sync_file", "os.fsync(descriptor)", 1.0)
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
