"""The outbox over SQLAlchemy: its tables, and relays that are killed.

What a relay does is the same code as for Django's tables: see django/test_outbox.py too.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import nsq
from nsq.contrib import outbox
from nsq.contrib.outbox import Relay, Tables, leases, messages, publish
from nsq.testing import Nsqd

from .conftest import ROOT, until
from .postgres import Postgres
from .relays import expect_nothing_lost


def url_of(postgres: Postgres) -> str:
    return f"postgresql+psycopg://postgres@/postgres?host={postgres.directory}"


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    if request.param == "sqlite":
        engine = sa.create_engine(f"sqlite:///{tmp_path / 'outbox.db'}?timeout=60")  # of a busy machine
    else:
        engine = sa.create_engine(url_of(request.getfixturevalue("postgres")))
    outbox.metadata.create_all(engine)
    yield engine
    engine.dispose()


def rows(engine: sa.Engine, *columns: Any) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.select(*columns).order_by(messages.c.id))]


def bodies(nsqd: Nsqd, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    consumer = nsq.Consumer(topic, "test", nsqd=nsqd.tcp_address)
    with consumer.add_handler(lambda message: found.append(message.body)):
        until(lambda: len(found) >= count)
    return sorted(found)


def test_a_message_is_stored_with_the_transaction_and_only_with_it(engine: sa.Engine) -> None:
    with Session(engine) as session:
        publish(session, "orders", b"cake", key="ada")
        session.rollback()
        publish(session, "orders", b"tea", key="ada")
        session.commit()
    with engine.begin() as connection:
        publish(connection, "reminders", b"17", defer=600.0)
    registry = scoped_session(sessionmaker(engine))
    publish(registry, "orders", bytearray(b"scoped"), key="ada")
    registry.commit()
    registry.remove()
    c = messages.c
    assert rows(engine, c.topic, c.body, c.key, c.attempts, c.due_at.is_(None)) == [
        ("orders", b"tea", "ada", 0, True),
        ("reminders", b"17", "", 0, False),
        ("orders", b"scoped", "ada", 0, True),
    ]
    ((first,), _, (third,)) = rows(engine, c.shard)
    assert first == third


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"topic": "no topic!"}, "no topic"),
        ({"body": b""}, "a body has 0 bytes"),
        ({"body": "text"}, "a body must be bytes"),
        ({"body": b"x" * 11, "config": nsq.Config(max_msg_size=10)}, "1 to 10"),
        ({"defer": -1.0}, "defer is -1.0"),
        ({"defer": 3601.0}, "defer is 3601.0"),
        ({"key": 17}, "key is 17"),
        ({"key": "k" * 201}, "key is 'k"),
    ],
)
def test_what_nsqd_would_refuse_is_not_stored(wrong: dict[str, Any], error: str) -> None:
    with pytest.raises((nsq.InvalidMessage, nsq.InvalidName), match=error):
        publish(None, **{"topic": "orders", "body": b"1", **wrong})


def test_on_a_loop_publish_async_takes_connections_and_sessions(postgres: Postgres) -> None:
    async def run() -> None:
        engine = create_async_engine(url_of(postgres))
        async with engine.begin() as connection:
            await connection.run_sync(outbox.metadata.create_all)
            await outbox.publish_async(connection, "orders", b"1", key="ada")
        async with AsyncSession(engine) as session, session.begin():
            await outbox.publish_async(session, "orders", b"2", defer=1.0)
        with pytest.raises(nsq.UsageError, match="must be an Engine of SQLAlchemy, not async"):
            Relay(engine, None)
        await engine.dispose()

    asyncio.run(run())
    assert postgres.query("select body from nsq_outbox order by id") == [(b"1",), (b"2",)]


def test_a_relay_publishes_what_is_committed(engine: sa.Engine, nsqd: Nsqd) -> None:
    with Session(engine) as session, session.begin():
        for number in range(20):
            publish(session, "orders", b"%d" % number, key=str(number))
        publish(session, "reminders", b"soon", defer=0.5)
    with nsq.Producer(nsqd.tcp_address) as producer:
        assert Relay(engine, producer, batch=7).run(once=True)
    assert rows(engine, messages.c.id) == []
    assert bodies(nsqd, "orders", 20) == sorted(b"%d" % number for number in range(20))
    assert bodies(nsqd, "reminders", 1) == [b"soon"]


def test_while_nsqd_is_down_messages_wait_with_the_reason_and_stop_ends_the_relay(
    engine: sa.Engine, nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nsq")
    with engine.begin() as connection:
        publish(connection, "orders", b"tea")
    with nsq.Producer("127.0.0.1:1", publish_timeout=0.2) as producer:
        assert not Relay(engine, producer).run(once=True)
    ((attempts, error, refused),) = rows(engine, messages.c.attempts, messages.c.error, messages.c.refused_at)
    assert (attempts, refused) == (1, None)
    assert "refused" in error
    assert f"relays the outbox from {engine.url!r}" in caplog.text
    with nsq.Producer(nsqd.tcp_address) as producer:
        relay = Relay(engine, producer)
        thread = threading.Thread(target=relay.run, kwargs={"poll": 60.0})
        thread.start()
        until(lambda: rows(engine, messages.c.id) == [])
        relay.stop()
        thread.join(20)
        assert not thread.is_alive()


def test_a_message_that_nsqd_refuses_is_set_aside(engine: sa.Engine, nsqd_factory: Any) -> None:
    nsqd = nsqd_factory(max_msg_size=10)
    with engine.begin() as connection:
        for body in (b"1", b"far too long", b"3"):
            publish(connection, "orders", body, key="ada")
    with nsq.Producer(nsqd.tcp_address) as producer:
        assert Relay(engine, producer).run(once=True)
    ((body, error, refused),) = rows(engine, messages.c.body, messages.c.error, messages.c.refused_at)
    assert body == b"far too long"
    assert "E_BAD_MESSAGE" in error
    assert refused is not None
    assert bodies(nsqd, "orders", 2) == [b"1", b"3"]


def test_one_relay_at_a_time_has_the_lease_of_a_shard(engine: sa.Engine) -> None:
    tables = Tables(engine)
    tables.add_leases()
    tables.add_leases()
    now = time.time()
    assert tables.take(3, "first", now, now + 40)
    assert not tables.take(3, "second", now + 39, now + 80)
    assert tables.renew(3, "first", now + 39, now + 79)
    assert not tables.renew(3, "second", now + 39, now + 79)
    assert tables.take(3, "second", now + 80, now + 120)
    assert not tables.renew(3, "first", now + 81, now + 120)
    tables.release(3, "first")
    assert not tables.take(3, "first", now + 81, now + 120)
    tables.release(3, "second")
    assert tables.take(3, "first", now + 81, now + 120)
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(leases)) == 16


def test_relays_that_begin_at_the_same_time_make_the_leases_once(engine: sa.Engine) -> None:
    threads = [threading.Thread(target=Tables(engine).add_leases) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(leases)) == 16


def test_an_id_is_never_given_again(engine: sa.Engine) -> None:
    """A relay that lost its lease deletes by id what it has published."""
    seen = []
    for _ in range(3):
        with engine.begin() as connection:
            publish(connection, "orders", b"1")
        ((number,),) = rows(engine, messages.c.id)
        Tables(engine).delete([number])
        seen.append(number)
    assert len(set(seen)) == 3


def test_a_transaction_waits_for_another_one_that_writes_the_same_key(postgres: Postgres) -> None:
    engine = sa.create_engine(url_of(postgres))
    outbox.metadata.create_all(engine)
    ended: list[str] = []

    def write(key: str) -> None:
        with Session(engine) as session, session.begin():
            publish(session, "orders", b"second", key=key)
        ended.append(key)

    same, other = (threading.Thread(target=write, args=(key,)) for key in ("ada", "bob"))
    with engine.begin() as connection:
        publish(connection, "orders", b"first", key="ada")
        same.start()
        other.start()
        other.join(60)
        same.join(0.5)
        assert ended == ["bob"]
    same.join(60)
    assert ended == ["bob", "ada"]
    engine.dispose()


def test_a_key_needs_a_database_that_keeps_its_order(tmp_path: Path) -> None:
    engine = sa.create_engine("sqlite://")
    engine.dialect.name = "mysql"
    with engine.connect() as connection, pytest.raises(nsq.UsageError, match=r"key= needs .* is mysql"):
        publish(connection, "orders", b"1", key="ada")


WRITER = """
import random, sys
import sqlalchemy as sa
from nsq.contrib.outbox import publish
url, writer, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
engine = sa.create_engine(url)
numbers = {}
for _ in range(count):
    with engine.connect() as connection:
        key = f"{writer}-{random.randrange(5)}"
        numbers[key] = numbers.get(key, 0) + 1
        publish(connection, "orders", f"{key} {numbers[key]}".encode(), key=key)
        if random.random() < 0.1:
            connection.rollback()
            numbers[key] -= 1
        else:
            connection.commit()
"""

#: Publishes to a file, in the order of publishing. The lease of one that was killed ends after 6 s.
RELAY = """
import fcntl, random, sys, time
import nsq, sqlalchemy as sa
from nsq.contrib import relay
from nsq.contrib.outbox import Relay
relay._CLOCKS = 5.0
class Recording:
    config = nsq.Config(publish_timeout=0.5)
    def publish(self, topic, body, *, defer=None, timeout=None):
        self.multi_publish(topic, [body])
    def multi_publish(self, topic, bodies, *, timeout=None):
        time.sleep(random.uniform(0, 0.004))
        with open(sys.argv[2], "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(b"".join(body + b"\\n" for body in bodies))
Relay(sa.create_engine(sys.argv[1]), Recording(), batch=7).run(poll=0.05)
"""


def test_relays_that_are_killed_lose_nothing_and_keep_the_order_of_each_key(
    engine: sa.Engine, tmp_path: Path
) -> None:
    url = engine.url.render_as_string(hide_password=False)
    published, log = tmp_path / "published", tmp_path / "log"
    published.touch()

    def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            command = [sys.executable, "-c", program, url, *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            return subprocess.Popen(command, env=environment, stdout=file, stderr=file)

    expect_nothing_lost(
        partial(start, WRITER),
        partial(start, RELAY, str(published)),
        lambda: published.read_text().splitlines(),
        lambda: rows(engine, messages.c.id) == [],
        log.read_text,
    )
