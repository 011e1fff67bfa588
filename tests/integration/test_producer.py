"""The producer and real nsqds: killed, restarted, behind TLS, and shared with forked children."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from nsq.errors import (
    BadMessage,
    PublishUncertain,
)
from nsq.producer.producer import Producer
from nsq.testing import Network, Nsqd
from nsq.testing.plugin import Factory, factory
from tests.fakes.forks import forked
from tests.fakes.programs import run_python

from .authority import Authority
from .clients import depth, take_all
from .patience import eventually

PATIENCE = 60.0
QUICK = {"reconnect_initial": 0.01, "reconnect_max": 0.1}

# From 3.12 on Python warns of what these tests are about.
forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module")
def shared() -> Iterator[Nsqd]:
    """For tests that do nothing to it; each has topics of its own."""
    with factory(Nsqd) as make:
        yield make(process=True)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).partition("[")[0].removeprefix("test_")[:64]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificate"))


class Publishers:
    """Threads that publish numbered bodies, one after the other, until the block ends."""

    def __init__(self, producer: Producer, topic: str, count: int) -> None:
        self._producer = producer
        self._topic = topic
        self._stop = threading.Event()
        self.acknowledged: list[bytes] = []
        self.uncertain: list[bytes] = []
        self.faults: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(f"parent-{number}",), name=f"publisher-{number}")
            for number in range(count)
        ]

    def _run(self, prefix: str) -> None:
        number = 0
        while not self._stop.is_set():
            body = f"{prefix}-{number}".encode()
            number += 1
            try:
                self._producer.publish(self._topic, body, timeout=PATIENCE)
            except PublishUncertain:
                self.uncertain.append(body)
            except BaseException as error:
                self.faults.append(error)
                return
            else:
                self.acknowledged.append(body)

    def __enter__(self) -> Publishers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)

    def wait_for(self, more: int) -> None:
        """Until so many more are acknowledged."""
        wanted, deadline = len(self.acknowledged) + more, time.monotonic() + PATIENCE
        while len(self.acknowledged) < wanted and not self.faults:
            assert time.monotonic() < deadline, "publishing has come to a halt"
            time.sleep(0.005)

    def expect_nothing_lost(self, stored: list[bytes]) -> None:
        assert self.faults == []
        counts = Counter(stored)
        assert [body for body in self.acknowledged if counts[body] != 1] == []
        assert set(counts) - set(self.acknowledged) <= set(self.uncertain)


# One nsqd


def test_a_refused_message_does_not_disturb_other_publishes(nsqd_factory: Factory[Nsqd], topic: str) -> None:
    nsqd = nsqd_factory(max_msg_size=1000)
    with Producer(nsqd.tcp_address, **QUICK) as producer, Publishers(producer, topic, 4) as publishers:
        for _ in range(5):
            publishers.wait_for(20)
            with pytest.raises(BadMessage, match="too big"):
                producer.publish(topic, b"x" * 1001)
        publishers.wait_for(20)
    assert publishers.uncertain == []
    publishers.expect_nothing_lost(take_all(nsqd, topic))


def test_a_restart_loses_nothing_that_was_acknowledged(nsqd_factory: Factory[Nsqd], topic: str) -> None:
    nsqd = nsqd_factory(process=True)
    with Producer(nsqd.tcp_address, **QUICK) as producer, Publishers(producer, topic, 4) as publishers:
        publishers.wait_for(100)
        nsqd.restart()
        before = len(publishers.acknowledged)
        publishers.wait_for(100)
    # What a publisher notes first may have been stored before the restart.
    noted, acknowledged = set[bytes](), list[bytes]()
    for body in publishers.acknowledged[before:]:
        publisher = body.rpartition(b"-")[0]
        acknowledged += [body] if publisher in noted else []
        noted.add(publisher)
    assert publishers.faults == []
    # Ours forgets at a restart what it had in memory, Go's writes it to disk: either will do.
    stored = take_all(nsqd, topic)
    assert len(stored) == len(set(stored))
    assert set(acknowledged) <= set(stored) <= {*publishers.acknowledged, *publishers.uncertain}


# Several nsqds


def test_when_one_nsqd_is_killed_the_other_takes_over(nsqd_factory: Factory[Nsqd], topic: str) -> None:
    killed, other = nsqds = [nsqd_factory(process=True) for _ in range(2)]
    with Producer(*(nsqd.tcp_address for nsqd in nsqds), **QUICK) as producer:
        with Publishers(producer, topic, 8) as publishers:
            publishers.wait_for(100)
            eventually(lambda: min(depth(nsqd, topic) for nsqd in nsqds))  # both have a share
            killed.kill()
            publishers.wait_for(100)
            eventually(lambda: set(producer.health().problems), lambda seen: seen == {killed.tcp_address})
            killed.start()
            eventually(lambda: not producer.health().problems)
            eventually(lambda: depth(killed, topic))
            publishers.wait_for(100)
        published = {each.address: each.published for each in producer.stats().connections}
    assert publishers.faults == []
    assert len(publishers.uncertain) <= 8  # what was on its way to the killed one
    assert sum(published.values()) == len(publishers.acknowledged)
    # What the killed one had in its memory is gone with it; the other one has all that it ever acknowledged.
    stored = take_all(other, topic)
    assert len(stored) == len(set(stored)) == published[other.tcp_address] > 100
    assert 0 < depth(killed, topic) < published[killed.tcp_address]


@pytest.mark.parametrize("retry_uncertain", [False, True], ids=["certain", "retried"])
def test_when_connections_are_cut_nothing_acknowledged_is_lost(
    retry_uncertain: bool, nsqd_factory: Factory[Nsqd], topic: str
) -> None:
    nsqds = [nsqd_factory() for _ in range(2)]
    cuts = 0
    with Network() as network:
        links = [network.link(nsqd.tcp_address) for nsqd in nsqds]
        with (
            Producer(*(link.address for link in links), retry_uncertain=retry_uncertain, **QUICK) as producer,
            Publishers(producer, topic, 8) as publishers,
        ):
            for link in links * 10:
                publishers.wait_for(20)
                cuts += link.cut()
            publishers.wait_for(20)
    assert producer.stats().pending == 0
    assert [each.pending for each in producer.stats().connections] == [0, 0]  # every place was given back
    assert cuts >= 10
    stored = [body for nsqd in nsqds for body in take_all(nsqd, topic)]
    if retry_uncertain:
        assert publishers.uncertain == []
        assert set(publishers.acknowledged) == set(stored)  # some of them twice
    else:
        publishers.expect_nothing_lost(stored)


# TLS, compression


@pytest.mark.parametrize(
    "options", [{"snappy": True}, {"deflate": True}, {}], ids=["snappy", "deflate", "plain"]
)
@pytest.mark.parametrize("tls", [True, False], ids=["tls", "tcp"])
def test_publishes_pass_through_tls_and_compression(
    tls: bool, options: dict[str, bool], nsqd_factory: Factory[Nsqd], authority: Authority, topic: str
) -> None:
    nsqd = nsqd_factory(**authority.server_options)
    security = {"tls": True, "tls_ca_file": str(authority.certificate)} if tls else {}
    large = os.urandom(400_000)
    with Producer(nsqd.tcp_address, **security, **options) as producer:
        with Publishers(producer, topic, 4) as publishers:
            publishers.wait_for(50)
            producer.publish(topic, large)
            producer.multi_publish(topic, [b"a" * 200_000, b"b" * 200_000])
        producer.ping()
    stored = take_all(nsqd, topic)
    for body in (large, b"a" * 200_000, b"b" * 200_000):
        stored.remove(body)
    publishers.expect_nothing_lost(stored)


# Forks


@forks
def test_a_child_that_leaves_the_with_block_ends_nothing_of_the_parents(shared: Nsqd, topic: str) -> None:
    with Producer(shared.tcp_address) as producer:
        producer.publish(topic, b"before")

        def child() -> None:
            with producer:
                pass

        with forked(child):
            pass
        producer.publish(topic, b"after")
        assert producer.stats().published == 2  # over the same connection: it was not lost
        assert producer.stats().failed == 0
    assert take_all(shared, topic) == [b"before", b"after"]


def test_a_program_that_ends_without_an_nsqd_does_not_hang() -> None:
    program = """
from nsq.producer.producer import Producer
Producer("127.0.0.1:1", publish_timeout=0.5).publish_async("orders", b"body")
"""
    done = run_python("-c", program)
    assert done.returncode == 0
    assert "127.0.0.1:1" in done.stderr
