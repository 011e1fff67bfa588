"""Tasks that publish with an ``nsq.Producer``, and messages that become tasks, whatever the broker is."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable

import kombu
import pytest
from celery import Celery
from celery.exceptions import TimeLimitExceeded

import nsq
from nsq.testing import MemoryNsqd, Nsqd
from nsq.testing.plugin import Factory

from .conftest import PATIENCE, Site, wait_for


def test_a_program_that_has_published_ends_without_noise(nsqd: Nsqd) -> None:
    program = f"""
from celery import Celery
Celery(broker="nsq://{nsqd.tcp_address}", set_as_current=True).send_task("t")
"""
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert done.stderr == ""


def received(nsqd: Nsqd, topic: str, wanted: set[str]) -> set[str]:
    """Consume a topic until all wanted bodies have come."""
    found: set[str] = set()
    consumer = nsq.Consumer(topic, "test", nsqd=nsqd.tcp_address, max_in_flight=500)
    with consumer.add_handler(lambda message: found.add(message.body.decode())):
        wait_for(lambda: wanted <= found, lambda: f"missing are {sorted(wanted - found)[:20]}")
    return found


@pytest.mark.parametrize(("pool", "limit"), [("prefork", "soft"), ("prefork", "hard"), ("gevent", "hard")])
def test_time_limits_interrupt_publishes_anywhere_and_lose_none(
    site: Callable[..., Site], nsqd: Nsqd, pool: str, limit: str
) -> None:
    chance = random.Random(3)
    here = site(f"nsq://{nsqd.tcp_address}", TARGET=nsqd.tcp_address)
    here.worker("-P", pool, "-c", "4")
    name = "soft_time_limit" if limit == "soft" else "time_limit"
    limited = [
        here.tasks.publish_until_the_limit.apply_async(("out", number), **{name: chance.uniform(0.1, 0.5)})
        for number in range(16)
    ]
    for result in limited:
        if limit == "soft":
            result.get(timeout=PATIENCE)
        else:
            with pytest.raises(TimeLimitExceeded):
                result.get(timeout=PATIENCE)
    # The same processes, or greenlets, publish as before.
    numbers = range(200, 260)
    results = [here.tasks.publish.delay("out", number) for number in numbers]
    assert [result.get(timeout=PATIENCE) for result in results] == [*numbers]
    sent = {line.removeprefix("sent ") for line in here.runs}
    assert len(sent) > 16
    found = received(nsqd, "out", sent | set(map(str, numbers)))
    # Each interrupt may leave one that is stored and was not noted.
    assert len(found) <= len(sent) + len(numbers) + len(limited)


def test_a_message_becomes_a_task_and_is_finished_when_the_broker_has_it(
    site: Callable[..., Site], nsqd: Nsqd, nsqd_factory: Factory[Nsqd]
) -> None:
    broker = nsqd_factory(process=True)
    here = site(f"nsq://{broker.tcp_address}?publish_timeout=300ms&reconnect_max=300ms")
    here.app.conf.update(task_publish_retry=False, broker_connection_timeout=0.3)
    done = threading.Event()

    def bridge(message: nsq.Message) -> None:
        task_id = message.id.decode()
        here.tasks.count_order.apply_async((message.json(),), task_id=task_id)
        done.set()

    with nsq.Producer(nsqd.tcp_address) as producer:
        producer.publish("orders", b'{"order": 1}')
    broker.stop(keep_data=True)
    consumer = nsq.Consumer(
        "orders", "celery", nsqd=nsqd.tcp_address, max_attempts=0, default_requeue_delay=0.1,
        max_backoff_duration=0.0,
    )  # fmt: skip
    with consumer.add_handler(bridge):
        wait_for(lambda: consumer.stats().requeued, lambda: repr(consumer.stats()))
        assert not done.is_set()
        broker.start()
        wait_for(lambda: consumer.stats().finished, lambda: repr(consumer.stats()))
    here.worker("-P", "solo")
    assert here.wait_for_runs(1) == ["order 1"]


def test_tasks_go_to_an_nsqd_in_memory_and_come_back(memory_nsqd: MemoryNsqd) -> None:
    options = {"transport": memory_nsqd}
    app = Celery(broker=f"nsq://{memory_nsqd.tcp_address}", set_as_current=False)
    app.conf.broker_transport_options = options
    app.send_task("shop.bill", (17,), queue="orders")
    assert memory_nsqd.depth("orders") == 1
    with kombu.Connection(app.conf.broker_url, transport_options=options) as connection:
        queue = connection.SimpleQueue("orders")
        message = queue.get(timeout=PATIENCE)
        assert message.headers["task"] == "shop.bill"
        message.ack()
        queue.close()
    app.close()
