"""The transport under kombu alone, on a real nsqd."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kombu.serialization  # loads the entry point, as importing celery does
import pytest

import nsq
from nsq.contrib.celery.broker import close_brokers
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from tests.integration.authority import Authority
from tests.interop.auth_server import running_auth_server

from .conftest import PATIENCE

Connect = Callable[..., kombu.Connection]


@pytest.fixture
def connect(nsqd: Nsqd) -> Iterator[Connect]:
    """Open a connection to the test's nsqd, or to another URL."""
    connections: list[kombu.Connection] = []

    def make(url: str = f"nsq://{nsqd.tcp_address}", **options: Any) -> kombu.Connection:
        connections.append(kombu.Connection(url, **options))
        return connections[-1]

    yield make
    for each in connections:
        each.close()


def publish(connection: kombu.Connection, queue: str, *bodies: object) -> None:
    for body in bodies:
        kombu.Producer(connection).publish(body, routing_key=queue, declare=[kombu.Queue(queue)])


def drain(connection: kombu.Connection, done: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Deliver messages until ``done``, or for so many seconds."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.2)


def consumer(
    connection: kombu.Connection, *queues: str, prefetch: int
) -> tuple[kombu.Consumer, list[tuple[object, kombu.Message]]]:
    got: list[tuple[object, kombu.Message]] = []
    consuming = kombu.Consumer(
        connection,
        [kombu.Queue(name) for name in queues],
        callbacks=[lambda body, message: got.append((body, message))],
        prefetch_count=prefetch,
    )
    return consuming, got


def test_answers_for_unknown_tags_do_nothing(connect: Connect) -> None:
    connection = connect()
    publish(connection, "a", 1, 2)
    consuming, got = consumer(connection, "a", prefetch=1)
    with consuming:
        drain(connection, lambda: got)
        channel = got[0][1].channel
        channel.basic_ack(77)
        channel.basic_reject(77, requeue=True)
        channel.basic_reject(77, requeue=False)
        drain(connection, lambda: len(got) > 1, 1.0)
        assert [body for body, _ in got] == [1]  # it is still held, and takes the whole prefetch
        got[0][1].ack()
        channel.basic_ack(got[0][1].delivery_tag)
        drain(connection, lambda: len(got) > 1)
        assert [body for body, _ in got] == [1, 2]
        got[1][1].ack()
    channel.close()
    channel.close()


def test_the_prefetch_is_one_number_for_all_queues_of_a_channel(connect: Connect) -> None:
    connection = connect()
    for name in ("a", "b", "c"):
        publish(connection, name, *range(20))
    consuming, got = consumer(connection, "a", "b", "c", prefetch=6)
    with consuming:
        drain(connection, lambda: len(got) >= 6)
        drain(connection, lambda: len(got) > 6, 2.0)
        assert len(got) == 6
        for taken in range(60):
            drain(connection, lambda taken=taken: len(got) > taken)  # type: ignore[misc]
            got[taken][1].ack()
            assert len(got) <= taken + 1 + 6


def test_a_prefetch_smaller_than_the_number_of_queues_serves_all_in_turn(connect: Connect) -> None:
    connection = connect()
    publish(connection, "a", 1)
    publish(connection, "c", 2)
    consuming, got = consumer(connection, "a", "b", "c", prefetch=1)
    with consuming:
        drain(connection, lambda: got)
        drain(connection, lambda: len(got) > 1, 1.0)
        assert len(got) == 1
        got[0][1].ack()
        drain(connection, lambda: len(got) > 1)
        assert sorted(str(body) for body, _ in got) == ["1", "2"]
        got[1][1].ack()


def test_a_closed_channel_gives_back_at_once_what_was_not_acknowledged(connect: Connect) -> None:
    first, second = connect(), connect()
    publish(first, "a", "hello")
    consuming, got = consumer(first, "a", prefetch=1)
    consuming.consume()
    drain(first, lambda: got)
    first.close()
    consuming, again = consumer(second, "a", prefetch=1)
    with consuming:
        drain(second, lambda: again)
        assert again[0][0] == "hello"
        assert again[0][1].delivery_info["redelivered"]
        again[0][1].ack()


def test_a_message_that_kombu_did_not_publish_goes_to_the_dead_letters(connect: Connect, nsqd: Nsqd) -> None:
    with nsq.Producer(nsqd.tcp_address) as producer:
        producer.publish("a", b"\xff not kombu's")
        producer.publish("a", b"\xff" * 2000)
    connection = connect(f"nsq://{nsqd.tcp_address}?max_msg_size=1000")
    publish(connection, "a", "hello")
    consuming, got = consumer(connection, "a", prefetch=1)
    with consuming:
        drain(connection, lambda: got)
        got[0][1].ack()
    dead: list[bytes] = []
    arrived = threading.Event()

    def keep(message: nsq.Message) -> None:
        dead.append(message.body)
        if len(dead) == 2:
            arrived.set()

    with nsq.Consumer("a.dead", "look", nsqd=nsqd.tcp_address).add_handler(keep):
        assert arrived.wait(PATIENCE)
    assert sorted(dead) == [b"\xff not kombu's", b"\xff" * 2000]


def test_what_nsq_does_not_have_is_refused_by_name(connect: Connect) -> None:
    connection = connect()
    for options, name in (
        ({"max_priority": 5}, "x-max-priority"),
        ({"max_length": 5}, "x-max-length"),
        # The empty name is that of the default exchange.
        ({"queue_arguments": {"x-dead-letter-exchange": ""}}, "x-dead-letter-exchange"),
    ):
        with pytest.raises(nsq.UsageError, match=f"queue 'a' has {name}"):
            kombu.Queue("a", **options)(connection.default_channel).declare()
    with pytest.raises(nsq.UsageError, match="priority is 3; nsq has no priorities"):
        kombu.Producer(connection).publish("x", routing_key="a", priority=3)
    with pytest.raises(nsq.UsageError, match="of type 'headers'"):
        kombu.Exchange("h", type="headers")(connection.default_channel).declare()


def test_a_message_above_the_limit_is_refused_at_once(connect: Connect) -> None:
    with pytest.raises(nsq.InvalidMessage):
        kombu.Producer(connect()).publish("x" * 2_000_000, routing_key="a")


def test_a_publish_waits_for_an_nsqd_that_restarts(connect: Connect, nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(process=True)
    connection = connect(f"nsq://{nsqd.tcp_address}")
    publish(connection, "a", 1)
    nsqd.stop(keep_data=True)
    timer = threading.Timer(1.0, nsqd.start)
    timer.start()
    publish(connection, "a", 2)
    timer.join()
    consuming, got = consumer(connection, "a", prefetch=2)
    with consuming:
        drain(connection, lambda: len(got) == 2)
        assert sorted(str(body) for body, _ in got) == ["1", "2"]


def test_nsqds_are_found_by_nsqlookupd(
    connect: Connect, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]
) -> None:
    nsqds = [nsqd_factory(lookupd=[nsqlookupd], broadcast_address="127.0.0.1") for _ in range(2)]
    assert len(nsqds) == 2
    connection = connect(f"nsq+lookupd://{nsqlookupd.http_address}", connect_timeout=PATIENCE)
    consuming, got = consumer(connection, "a", prefetch=10)
    with consuming:
        publish(connection, "a", *range(6))
        drain(connection, lambda: len(got) == 6)
        assert sorted(str(body) for body, _ in got) == [str(each) for each in range(6)]
        for _, message in got:
            message.ack()


def test_a_secret_in_the_url_authorizes_over_tls(
    connect: Connect, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    grant = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
    with running_auth_server({"s3cr/t": [grant]}) as address:
        nsqd = nsqd_factory(auth_http_addresses=[address], tls_required="true", **authority.server_options)
        files = {"ca_certs": str(authority.certificate)}
        connection = connect(f"nsqs://s3cr%2Ft@{nsqd.tcp_address}", ssl=files)
        publish(connection, "a", "hello")
        consuming, got = consumer(connection, "a", prefetch=1)
        with consuming:
            drain(connection, lambda: got)
            assert got[0][0] == "hello"
            got[0][1].ack()
        connection.close()
        with pytest.raises(nsq.NsqError, match="E_UNAUTHORIZED") as caught:
            connect(f"nsqs://wrong-horse@{nsqd.tcp_address}", ssl=files).connect()
        assert "wrong-horse" not in str(caught.value)


def test_a_missing_nsqd_is_reported_in_one_line() -> None:
    with pytest.raises(nsq.ConnectionFailed, match=r"cannot connect to 127\.0\.0\.1:1"):
        kombu.Connection("nsq://127.0.0.1:1", connect_timeout=0.3).connect()


def test_each_queue_of_an_exchange_gets_one_copy_of_a_message_that_hops(
    connect: Connect, nsqd_factory: Factory[Nsqd]
) -> None:
    nsqd = nsqd_factory(max_req_timeout=1.0)
    connection = connect(f"nsq://{nsqd.tcp_address}?max_defer=1s")
    exchange = kombu.Exchange("news", type="topic")
    queues = [kombu.Queue(name, exchange, routing_key="news.#") for name in ("news", "copy")]
    got: list[str] = []
    eta = datetime.now(UTC) + timedelta(seconds=3.2)
    with kombu.Consumer(
        connection,
        queues,
        callbacks=[lambda _, message: (got.append(message.delivery_info["consumer_tag"]), message.ack())],
    ):
        headers = {"task": "t", "eta": eta.isoformat()}
        kombu.Producer(connection, exchange).publish("x", routing_key="news.today", headers=headers)
        drain(connection, lambda: got)
        assert datetime.now(UTC) > eta - timedelta(seconds=0.1)
        drain(connection, lambda: len(got) > 2, 2.5)
    assert len(set(got)) == len(got) == 2


def test_consumers_come_and_go_while_the_prefetch_is_shared_out(connect: Connect) -> None:
    channel = connect().default_channel
    errors: list[BaseException] = []
    over = threading.Event()

    def share() -> None:
        while not over.is_set():
            try:
                channel.share()
            except BaseException as error:
                errors.append(error)
                return

    sharing = threading.Thread(target=share)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    sharing.start()
    try:
        for number in range(60):
            tags = [channel.basic_consume(name, consumer_tag=f"{name}{number}") for name in ("a", "b")]
            for tag in tags:
                channel.basic_cancel(tag)
    finally:
        over.set()
        sharing.join()
        sys.setswitchinterval(interval)
    assert errors == []


def test_a_transient_message_for_an_exchange_is_refused_while_nsqd_is_down(
    connect: Connect, nsqd_factory: Factory[Nsqd]
) -> None:
    nsqd = nsqd_factory(process=True)
    producer = kombu.Producer(
        connect(f"nsq://{nsqd.tcp_address}?publish_timeout=500ms"), kombu.Exchange("news")
    )
    producer.publish("x", delivery_mode=1)
    nsqd.stop()
    with pytest.raises(nsq.PublishFailed):
        producer.publish("x", delivery_mode=1)


def test_a_queue_gets_what_other_processes_publish_without_declaring_anything(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    exchange = kombu.Exchange("news", type="fanout", durable=False)
    reply_queue = kombu.Queue("reply-to-me", durable=False, auto_delete=True)
    got: list[object] = []
    with kombu.Consumer(
        connection,
        [kombu.Queue("news.1", exchange), kombu.Queue("requests"), reply_queue],
        callbacks=[lambda body, message: (got.append(body), message.ack())],
    ):
        monkeypatch.setattr("nsq.contrib.celery.broker._brokers", {})  # as in another process
        other = connect()
        kombu.Producer(other).publish("to all", exchange="news")
        # A persistent result, as Celery's result_persistent makes it.
        kombu.Producer(other).publish("reply", routing_key="reply-to-me", correlation_id="1", delivery_mode=2)
        # As the client of kombu's guide to RPC, and Celery's protocol 1, do.
        kombu.Producer(other).publish(
            "request", routing_key="requests", correlation_id="1", reply_to="reply-to-me"
        )
        close_brokers()
        drain(connection, lambda: len(got) == 3)
    assert sorted(map(str, got)) == ["reply", "request", "to all"]
