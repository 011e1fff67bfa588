"""Effects that happen once: whatever kills a consumer, and whoever delivers a message twice."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import nsq
from nsq.contrib.codecs import enveloping
from nsq.contrib.once import Once, message_id
from nsq.testing import Nsqd

from .conftest import ROOT, until
from .postgres import Postgres


def message(body: bytes = b"1", number: int = 1, timestamp: int = 1) -> nsq.Message:
    return nsq.Message(None, 0.0, 0.0, timestamp, 1, b"%016x" % number, body)


def enveloped(number: int, source: str = "/shop") -> nsq.Message:
    (body,), _ = enveloping(source, "order", id=lambda topic, body: body.decode())("orders", [b"%d" % number])
    return message(body)


# Connections


class Database:
    """Opens a connection of a kind, with a transaction or without one; ``noted`` reads what is committed."""

    def __init__(self, kind: str, file: Path, postgres: Postgres | None) -> None:
        self._kind = kind
        self._file = file
        self._postgres = postgres
        if postgres is None:
            with closing(sqlite3.connect(file)) as connection:
                Once.create(connection)
        else:
            with self._psycopg() as connection:
                Once.create(connection)

    def _psycopg(self, **options: Any) -> Any:
        assert self._postgres is not None
        return psycopg.connect(host=str(self._postgres.directory), user="postgres", **options)

    def url(self) -> str:
        if self._postgres is None:
            return f"sqlite:///{self._file}"
        return f"postgresql+psycopg://postgres@/postgres?host={self._postgres.directory}"

    @contextmanager
    def open(self, autocommit: bool = False) -> Iterator[Any]:
        if self._kind == "sqlite3":
            with closing(
                sqlite3.connect(self._file, isolation_level=None if autocommit else "", timeout=60)
            ) as connection:
                connection.row_factory = lambda cursor, row: {"its": row}
                connection.text_factory = bytes
                yield connection
        elif self._kind == "psycopg":
            with closing(self._psycopg(autocommit=autocommit, row_factory=dict_row)) as connection:
                yield connection
        else:
            options = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
            engine = sqlalchemy.create_engine(self.url(), **options)
            try:
                opened = {
                    "connection": engine.connect,
                    "session": lambda: Session(engine),
                    "scoped": lambda: scoped_session(sessionmaker(engine)),
                }[self._kind.split()[0]]()
                yield opened
                opened.close()
            finally:
                engine.dispose()

    def noted(self) -> list[tuple[str, str]]:
        sql = "select effect, message from nsq_once order by 1, 2"
        if self._postgres is not None:
            return [(effect, text) for effect, text in self._postgres.query(sql)]
        with closing(sqlite3.connect(self._file)) as connection:
            return connection.execute(sql).fetchall()


ON_SQLITE = ["sqlite3", "connection sqlite", "session sqlite", "scoped sqlite"]
ON_POSTGRES = ["psycopg", "connection postgres", "session postgres"]


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    postgres = request.getfixturevalue("postgres") if request.param in ON_POSTGRES else None
    return Database(request.param, tmp_path / "once.db", postgres)


on_all = pytest.mark.parametrize("database", ON_SQLITE + ON_POSTGRES, indirect=True)
on_both = pytest.mark.parametrize("database", ["sqlite3", "psycopg"], indirect=True)


@on_all
def test_a_message_is_noted_with_the_transaction_and_only_with_it(database: Database) -> None:
    billing, packing = Once("billing"), Once("packing")
    one, two, three = (enveloped(number) for number in (1, 2, 3))
    with database.open() as connection:
        assert billing.first(connection, one)
        assert not billing.first(connection, one)
        connection.rollback()
        assert billing.first(connection, one)
        assert packing.first(connection, one)
        connection.commit()
        assert billing.first_of(connection, [three, one, two, three, enveloped(2)]) == [three, two]
        assert billing.first_of(connection, []) == []
        connection.commit()
    assert database.noted() == [
        *(("billing", f'["/shop","{number}"]') for number in (1, 2, 3)),
        ("packing", '["/shop","1"]'),
    ]


@on_all
def test_a_connection_that_commits_each_statement_is_refused(database: Database) -> None:
    with database.open(autocommit=True) as connection:
        for messages in ([message()], []):
            with pytest.raises(nsq.UsageError, match="begin a transaction"):
                Once("billing").first_of(connection, messages)
    assert database.noted() == []


@on_both
def test_a_transaction_in_autocommit_is_accepted(database: Database) -> None:
    with database.open(autocommit=True) as connection:
        connection.execute("BEGIN")
        assert Once("billing").first(connection, message())
        connection.execute("COMMIT")
    assert len(database.noted()) == 1


def test_sqlalchemy_may_begin_the_transactions_of_sqlite_itself(tmp_path: Path) -> None:
    """As its documentation advises for serializable transactions."""
    database = Database("session sqlite", tmp_path / "once.db", None)
    engine = sqlalchemy.create_engine(database.url())

    @sqlalchemy.event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with engine.begin() as connection:
        assert Once("billing").first(connection, message())
    with engine.connect() as connection:
        assert not Once("billing").first(connection, message())
        assert Once("billing").first(connection, message(number=2))
    engine.dispose()
    assert len(database.noted()) == 1


def test_on_a_loop_first_async_takes_connections_and_sessions_of_sqlalchemy(postgres: Postgres) -> None:
    database = Database("session postgres", Path(), postgres)
    billing = Once("billing")

    async def run() -> None:
        engine = create_async_engine(database.url())
        async with AsyncSession(engine) as session:
            assert await billing.first_async(session, message(number=1))
            with pytest.raises(TypeError, match=r"sqlalchemy.*AsyncSession; it must be .*first_async"):
                billing.first(session, message(number=1))
        async with engine.begin() as connection:
            assert await billing.first_of_async(connection, [message(number=1), message(number=1)])
        async with AsyncSession(engine) as session:
            assert not await billing.first_async(session, message(number=1))
            assert await session.run_sync(billing.prune) == 0
        every = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with every.connect() as connection:
            with pytest.raises(nsq.UsageError, match="begin a transaction"):
                await billing.first_async(connection, message(number=2))
        await engine.dispose()
        with pytest.raises(TypeError, match=r"NoneType; it must be an AsyncConnection"):
            await billing.first_async(None, message())

    asyncio.run(run())
    assert len(database.noted()) == 1


@pytest.mark.parametrize("connection", [None, object(), 1, b"default"])
def test_another_connection_is_refused_with_the_list_of_those_that_are_known(connection: object) -> None:
    with pytest.raises(
        TypeError, match=r"the connection is a .*sqlite3 or psycopg.*SQLAlchemy.*Django.*PostgreSQL or SQLite"
    ):
        Once("billing").first(connection, message())


def test_another_database_is_refused(tmp_path: Path) -> None:
    database = Database("connection sqlite", tmp_path / "once.db", None)
    with database.open() as connection:
        connection.dialect.name = "mysql"
        with pytest.raises(TypeError, match=r"to a database of mysql; .* must be PostgreSQL or SQLite"):
            Once("billing").first(connection, message())


# Two at once


@on_both
@pytest.mark.parametrize("commits", [True, False])
def test_the_second_of_two_consumers_waits_for_the_transaction_of_the_first(
    database: Database, commits: bool
) -> None:
    billing = Once("billing")
    answers: list[bool] = []
    asked = threading.Event()

    def second() -> None:
        with database.open() as connection:
            asked.set()
            answers.append(billing.first(connection, message()))
            connection.commit()

    thread = threading.Thread(target=second)
    with database.open() as connection:
        assert billing.first(connection, message())
        thread.start()
        assert asked.wait(60)
        thread.join(0.3)
        assert thread.is_alive()
        connection.commit() if commits else connection.rollback()
        thread.join(60)
    assert answers == [not commits]
    assert len(database.noted()) == 1


@pytest.mark.parametrize("database", ["psycopg"], indirect=True)
def test_batches_with_the_same_messages_in_other_orders_do_not_lock_each_other_out(
    database: Database,
) -> None:
    messages = [enveloped(number) for number in range(300)]
    new: list[int] = []

    def work(mine: list[nsq.Message]) -> None:
        with database.open() as connection:
            for begin in range(0, 300, 100):
                new.append(len(Once("billing").first_of(connection, mine[begin:] + mine[:begin])))
                connection.commit()

    threads = [threading.Thread(target=work, args=(each,)) for each in (messages, messages[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(new) == [0, 0, 0, 0, 0, 300]


# Ids


def test_without_an_envelope_the_id_is_nsqds_id_with_its_time() -> None:
    ids = [message_id(each) for each in (message(), message(timestamp=2), message(number=2), message(b"2"))]
    assert ids[0] == ids[3]
    assert len(set(ids)) == 3


def test_with_an_envelope_the_id_is_that_of_its_source() -> None:
    same = message(enveloped(1).body, number=2, timestamp=2)
    assert message_id(enveloped(1)) == message_id(same) == '["/shop","1"]'
    assert message_id(enveloped(1, "/other")) == '["/other","1"]'


def test_the_batch_example_stores_messages_of_two_nsqds_that_gave_the_same_id(tmp_path: Path) -> None:
    """As two nsqds of one host may: by default the host's name is in their ids."""
    archive = runpy.run_path(str(ROOT / "examples" / "batch_consumer.py"))["Archive"](
        str(tmp_path / "orders.db")
    )
    for _ in range(2):
        archive.store([message(b"tea", timestamp=1), message(b"cake", timestamp=2)])
    with closing(sqlite3.connect(tmp_path / "orders.db")) as connection:
        assert connection.execute("select body from orders").fetchall() == [(b"tea",), (b"cake",)]


@on_both
def test_long_and_odd_ids_are_told_apart(database: Database) -> None:
    ids = ["x" * 200, "x" * 201, "x" * 202, "ä'\"\\:at%s", "\U0001f980" * 150]
    once = Once("billing", id=lambda message: ids[message.timestamp])
    messages = [message(timestamp=number) for number in range(len(ids))]
    with database.open() as connection:
        assert once.first_of(connection, messages) == messages
        assert once.first_of(connection, messages) == []
        connection.commit()
    assert max(len(text) for _, text in database.noted()) == 200


@pytest.mark.parametrize("wrong", [None, "", 7, b"7"])
def test_an_id_that_is_no_text_is_refused(wrong: Any) -> None:
    with pytest.raises(nsq.UsageError, match="the id of a message is"):
        Once("billing", id=lambda message: wrong).first(sqlite3, message())


@pytest.mark.parametrize("effect", ["", "e" * 101, None])
def test_an_effect_without_a_name_is_refused(effect: str) -> None:
    with pytest.raises(nsq.UsageError, match="effect is"):
        Once(effect)


@on_both
def test_pruning_forgets_the_old_messages_of_its_effect(database: Database) -> None:
    billing, packing = Once("billing"), Once("packing")
    with database.open() as connection:
        for once in (billing, packing):
            once.first_of(connection, [enveloped(number) for number in range(3)])
        connection.execute('UPDATE nsq_once SET at = at - 1000 WHERE message <> \'["/shop","2"]\'')
        assert billing.prune(connection) == 0
        assert billing.prune(connection, older=timedelta(seconds=900)) == 2
        connection.commit()
        with pytest.raises(nsq.UsageError, match="older is"):
            billing.prune(connection, older=timedelta(0))
    assert [effect for effect, _ in database.noted()] == ["billing", *["packing"] * 3]


# Kills

#: Kills itself when it has come to the point STOP for the TIMES-th time.
WORKER = """
import itertools, json, os, signal, sqlite3, threading
import nsq
from nsq.contrib.once import Once

STOP, TIMES = os.environ["STOP"], int(os.environ["TIMES"])
comes = itertools.count(1)
local = threading.local()
billing = Once("billing")

def at(point):
    if point == STOP and next(comes) == TIMES:
        os.kill(os.getpid(), signal.SIGKILL)

def connected():
    if not hasattr(local, "connection"):
        if "POSTGRES" in os.environ:
            import psycopg
            local.connection = psycopg.connect(host=os.environ["POSTGRES"], user="postgres")
        else:
            local.connection = sqlite3.connect(os.environ["SQLITE"], timeout=60, isolation_level="IMMEDIATE")
    return local.connection

def bill(message):
    connection = connected()
    sign = "%s" if "POSTGRES" in os.environ else "?"
    try:
        at("begin")
        if billing.first(connection, message):
            at("noted")
            number = json.loads(message.body)["data"]
            connection.execute(f"INSERT INTO bills VALUES ({sign})", (number,))
            at("done")
        else:
            connection.execute("INSERT INTO repeats VALUES (1)")
        connection.commit()
        at("committed")
    except BaseException:
        connection.rollback()
        raise
    message.finish()
    at("finished")

consumer = nsq.Consumer(
    "orders", "billing", nsqd=os.environ["NSQD"], threads=4, max_in_flight=20, max_attempts=0,
    default_requeue_delay=0.0,
)
consumer.add_handler(bill)
consumer.run()
"""
POINTS = ["begin", "noted", "done", "committed", "finished"]
COUNT, AGAIN = 1000, 100


@on_both
def test_a_consumer_that_is_killed_at_any_statement_does_each_effect_once(
    database: Database, nsqd: Nsqd, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NSQD": nsqd.tcp_address}
    query: Callable[[str], Any]
    if database._postgres is None:
        environment["SQLITE"] = str(database._file)
        reader = sqlite3.connect(database._file, timeout=60, isolation_level=None)
        request.addfinalizer(reader.close)
        reader.execute("pragma journal_mode = wal")
        query = lambda sql: reader.execute(sql).fetchall()  # noqa: E731
    else:
        environment["POSTGRES"] = str(database._postgres.directory)
        query = database._postgres.query
    query("create table bills (number integer)")
    query("create table repeats (number integer)")
    assert nsqd.post("/topic/create?topic=orders").status == 200
    assert nsqd.post("/channel/create?topic=orders&channel=billing").status == 200
    hook = enveloping("/shop", "order", is_json=True, id=lambda topic, body: body.decode())
    with nsq.Producer(nsqd.tcp_address, around_publish=hook) as producer:
        bodies = [b"%d" % number for number in range(COUNT)]
        # As a publisher does whose publish was uncertain: the second time with another id of nsqd.
        producer.multi_publish("orders", bodies[:AGAIN] + bodies)
    for times, point in enumerate(POINTS * 2, 20):
        killed = subprocess.run(
            [sys.executable, "-c", WORKER],
            env={**environment, "STOP": point, "TIMES": str(times)},
            timeout=100,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, point
    last = subprocess.Popen(
        [sys.executable, "-c", WORKER], env={**environment, "STOP": "", "TIMES": "0"}, cwd=tmp_path
    )
    try:
        until(lambda: left(nsqd) == 0)
    finally:
        last.terminate()
        assert last.wait(60) == 0
    bills = [number for (number,) in query("select number from bills")]
    assert sorted(bills) == list(range(COUNT))
    # Those that were published twice, and those that a kill left without FIN.
    assert query("select count(*) from repeats")[0][0] > AGAIN


def left(nsqd: Nsqd) -> int:
    channel = json.loads(nsqd.get("/stats?format=json&topic=orders").body)["topics"][0]["channels"][0]
    count: int = channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
    return count
