"""Tests of a small service with an nsqd in memory: no port, no files, no processes.

    python examples/memory_nsqd.py             # or: pytest examples/memory_nsqd.py

The service takes orders, and publishes a bill for each. An order that the bank refuses is tried again after a
minute; the test does not wait for that.
"""

from __future__ import annotations

import queue
from collections.abc import Callable

import nsq
from nsq.testing import MemoryNsqd
from nsq.transport import Transport


class Billing:
    """The service under test: it takes the transport as an option, as all its clients do."""

    def __init__(
        self, nsqd: str, charge: Callable[[bytes], bool], transport: Transport | None = None
    ) -> None:
        self._charge = charge
        self._producer = nsq.Producer(nsqd, transport=transport)
        self.consumer = nsq.Consumer("orders", "billing", nsqd=nsqd, transport=transport)
        self.consumer.add_handler(self._bill)

    def _bill(self, message: nsq.Message) -> None:
        if self._charge(message.body):
            self._producer.publish("bills", b"bill for " + message.body)
        else:
            message.requeue(60.0, backoff=False)

    def __enter__(self) -> None:
        self.consumer.start()

    def __exit__(self, *_: object) -> None:
        self.consumer.stop()
        self._producer.close()


def test_an_order_is_billed() -> None:
    with MemoryNsqd() as nsqd:
        nsqd.publish("orders", b"tea")
        with Billing(nsqd.tcp_address, bool, transport=nsqd):
            assert bill(nsqd) == b"bill for tea"
        assert nsqd.depth("orders", "billing") == 0


def test_an_order_that_the_bank_refuses_is_tried_again() -> None:
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    answers = iter([False, True])

    def charge(order: bytes) -> bool:
        asked.put(order)
        return next(answers)

    with MemoryNsqd() as nsqd, Billing(nsqd.tcp_address, charge, transport=nsqd):
        nsqd.publish("orders", b"tea")
        assert asked.get(timeout=5) == b"tea"
        nsqd.release_deferred(1)  # waits until nsqd has it
        assert asked.get(timeout=5) == b"tea"
        assert bill(nsqd) == b"bill for tea"


def bill(nsqd: MemoryNsqd) -> bytes:
    """Return the next bill."""
    bills: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    consumer = nsq.Consumer("bills", "test", nsqd=nsqd.tcp_address, transport=nsqd)
    with consumer.add_handler(lambda message: bills.put(message.body)):
        return bills.get(timeout=5)


if __name__ == "__main__":
    for test in (test_an_order_is_billed, test_an_order_that_the_bank_refuses_is_tried_again):
        test()
        print(f"{test.__name__}: passed")
