"""What a worker makes of messages that cannot be tasks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import nsq
from nsq.testing import Nsqd
from tests.integration.consuming import channel_of

from . import crafted
from .conftest import Site, wait_for

BODY_NULL = (
    b'{"nsq-celery": 1, "exchange": "", "routing_key": "celery", "content_type": "application/json", '
    b'"content_encoding": "utf-8", "properties": {}, '
    b'"headers": {"task": "tests.contrib.celery.tasks.run", "id": "1"}}\nnull'
)


@pytest.mark.parametrize(
    ("pool", "late"), [("prefork", False), ("prefork", True), ("threads", False), ("solo", False)]
)
def test_no_crafted_message_ends_a_worker_or_comes_again(
    site: Callable[..., Site], nsqd: Nsqd, pool: str, late: bool
) -> None:
    here = site(f"nsq://{nsqd.tcp_address}", **({"LATE": "1"} if late else {}))
    here.worker("-P", pool, "-c", "1")
    here.tasks.begin_and_end.delay(1, 1.0)  # so that the first ones wait for a free process
    bodies = [BODY_NULL, *crafted.messages(400, seed=3)]
    with nsq.Producer(nsqd.tcp_address) as producer:
        producer.multi_publish("celery", bodies)
    here.tasks.run.delay(-1)
    ran = "done -1" if late else "run -1"
    wait_for(lambda: ran in here.runs or here._workers[0].poll() is not None, here.log)
    wait_for(lambda: not channel_of(nsqd, "celery", "celery")["in_flight_count"], here.log)
    channel = channel_of(nsqd, "celery", "celery")
    assert (channel["depth"], channel["requeue_count"], channel["timeout_count"]) == (0, 0, 0)
    dead: list[bytes] = []
    look = nsq.Consumer("celery.dead", "look", nsqd=nsqd.tcp_address)
    with look.add_handler(lambda message: dead.append(message.body)):
        wait_for(lambda: BODY_NULL in dead, here.log)
    assert set(dead) <= set(bodies)
