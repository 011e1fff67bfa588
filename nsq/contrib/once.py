"""Do what a message asks for once, although NSQ may deliver the message more than once.

    billing = Once("billing")

    def bill(message: nsq.Message) -> None:
        with psycopg.connect("dbname=shop") as connection:
            if billing.first(connection, message):
                connection.execute("INSERT INTO bills ...")

``first`` notes the message in the table ``nsq_once``, in the transaction of the effect. Both are committed,
or neither is: a program may be killed anywhere, and the message comes again until its effect is committed.

A connection is one of sqlite3, psycopg or SQLAlchemy (a Connection or a Session; with ``first_async`` also an
AsyncConnection or an AsyncSession), or the name of a database of Django. The database is PostgreSQL or SQLite
(3.38 or newer).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from nsq import Message, UsageError
from nsq.wire.envelope import unwrap

#: As the columns are declared.
LONGEST_EFFECT, LONGEST_ID = 100, 200

_CREATE = f"""
CREATE TABLE IF NOT EXISTS nsq_once (
    effect varchar({LONGEST_EFFECT}) NOT NULL,
    message varchar({LONGEST_ID}) NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (effect, message)
)"""
# Ids travel as one JSON array, so that the statement is the same for any number of them.
_NOTE = """
INSERT INTO nsq_once (effect, message, at)
SELECT CAST(:effect AS varchar), ids.value, CAST(:at AS bigint) FROM {} WHERE true
ON CONFLICT DO NOTHING RETURNING message"""
_NOTE_IN = {
    "postgresql": _NOTE.format("json_array_elements_text(CAST(:ids AS json)) AS ids (value)"),
    "sqlite": _NOTE.format("json_each(:ids) AS ids"),
}
_PRUNE = "DELETE FROM nsq_once WHERE effect = :effect AND at < :at"


def message_id(message: Message) -> str:
    """Return what ``Once`` tells messages apart by: the source and the id of the message's envelope; without
    an envelope nsqd's id and time, as nsqds of one host may give the same id.
    """
    envelope = unwrap(message.body)
    if envelope is None:
        return f"{message.id_text} {message.timestamp}"
    return json.dumps([envelope.attributes["source"], envelope.attributes["id"]], separators=(",", ":"))


class Once:
    """Notes which messages have had their effect. ``effect`` is a name, such as ``"billing"``: each effect
    has messages of its own. ``id`` is a function that returns what tells a message from others, as a str; the
    default is ``message_id``.
    """

    def __init__(self, effect: str, *, id: Callable[[Message], str] = message_id) -> None:  # noqa: A002
        if not isinstance(effect, str) or not 0 < len(effect) <= LONGEST_EFFECT:
            raise UsageError(f"effect is {effect!r}; it must be a str of 1 to {LONGEST_EFFECT} characters")
        self._effect = effect
        self._id = id

    def first(self, connection: Any, message: Message) -> bool:
        """Note the message in the connection's transaction. Return whether that is new: then do the effect,
        in the same transaction.

        If another transaction has noted the message and not ended, this waits for its end.
        """
        return bool(self.first_of(connection, [message]))

    def first_of(self, connection: Any, messages: Iterable[Message]) -> list[Message]:
        """Note the messages in the connection's transaction, with one statement. Return those that are new,
        in their order; of several with the same id the first.
        """
        by_id: dict[str, Message] = {}
        for message in messages:
            by_id.setdefault(self._key(message), message)
        database = _open(connection)
        if not database.in_transaction():
            raise UsageError(
                "the connection commits each statement by itself, so that a message could be noted without "
                "its effect: begin a transaction"
            )
        # In one order for all: two transactions that note the same messages cannot wait for each other.
        values = {"effect": self._effect, "at": int(time.time()), "ids": json.dumps(sorted(by_id))}
        rows = database.execute(_NOTE_IN[database.dialect], values).fetchall() if by_id else []
        new = {_text(row[0]) for row in rows}
        return [message for key, message in by_id.items() if key in new]

    async def first_async(self, connection: Any, message: Message) -> bool:
        """Do as ``first``, with an AsyncSession or an AsyncConnection of SQLAlchemy."""
        return bool(await self.first_of_async(connection, [message]))

    async def first_of_async(self, connection: Any, messages: Iterable[Message]) -> list[Message]:
        """Do as ``first_of``, with an AsyncSession or an AsyncConnection of SQLAlchemy."""
        if not _is_async(connection):
            raise _not_supported(
                f"a {_name(type(connection))}", "an AsyncConnection or AsyncSession of SQLAlchemy"
            )
        new: list[Message] = await connection.run_sync(self.first_of, messages)
        return new

    def prune(self, connection: Any, older: timedelta = timedelta(days=7)) -> int:
        """Forget messages of this effect that were noted longer ago; return their number. One that comes
        after that has its effect again. The caller commits.
        """
        if not older > timedelta(0):
            raise UsageError(f"older is {older!r}; it must be above 0")
        values = {"effect": self._effect, "at": int(time.time() - older.total_seconds())}
        count: int = _open(connection).execute(_PRUNE, values).rowcount
        return count

    @staticmethod
    def create(connection: Any) -> None:
        """Create the table ``nsq_once`` unless it exists. The caller commits."""
        _open(connection).execute(_CREATE, {})

    def _key(self, message: Message) -> str:
        key = self._id(message)
        if not isinstance(key, str) or not key:
            raise UsageError(
                f"the id of a message is {key!r}; the function id= must return a str that is not empty"
            )
        return key if len(key) <= LONGEST_ID else hashlib.blake2b(key.encode(), digest_size=32).hexdigest()


# Connections. No library is imported here: that of a connection has been, by its user.


class _Database(NamedTuple):
    dialect: str
    #: Whether what is executed next waits for a commit.
    in_transaction: Callable[[], bool]
    execute: Callable[[str, Mapping[str, object]], Any]


def _is(connection: Any, module: str, *names: str) -> bool:
    kinds = (getattr(sys.modules.get(module), name, None) for name in names)
    return any(kind is not None and isinstance(connection, kind) for kind in kinds)


def _is_async(connection: Any) -> bool:
    return _is(
        connection, "sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession", "async_scoped_session"
    )


def _open(connection: Any) -> _Database:
    if _is(connection, "sqlite3", "Connection"):
        return _of_sqlite3(connection)
    if _is(connection, "psycopg", "Connection"):
        return _of_psycopg(connection)
    if _is(connection, "sqlalchemy.orm", "Session", "scoped_session"):
        return _of_sqlalchemy(connection.connection())
    if _is(connection, "sqlalchemy", "Connection"):
        return _of_sqlalchemy(connection)
    if isinstance(connection, str):
        from django.db import connections

        return _of_django(connections[connection])
    if _is(connection, "django.db.backends.base.base", "BaseDatabaseWrapper") or _is(
        connection, "django.utils.connection", "ConnectionProxy"
    ):
        return _of_django(connection)
    if _is_async(connection):
        raise _not_supported(f"a {_name(type(connection))}", "its first_async, or await its run_sync")
    raise _not_supported(f"a {_name(type(connection))}")


def _not_supported(what: str, instead: str = "") -> TypeError:
    known = (
        "a Connection of sqlite3 or psycopg, a Connection or Session of SQLAlchemy (async ones with "
        "first_async), or the name of a database of Django; the database must be PostgreSQL or SQLite"
    )
    return TypeError(f"the connection is {what}; it must be {instead or known}")


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _of_sqlite3(connection: Any) -> _Database:
    def execute(sql: str, values: Mapping[str, object]) -> Any:
        cursor = connection.cursor()
        cursor.row_factory = None  # the user's may return anything
        return cursor.execute(sql, values)

    return _Database("sqlite", lambda: _sqlite_in_transaction(connection), execute)


def _sqlite_in_transaction(connection: Any) -> bool:
    # Python 3.12 has `autocommit`; -1 means that isolation_level decides: unless it is None, an INSERT begins
    # a transaction.
    autocommit = getattr(connection, "autocommit", -1)
    begins = connection.isolation_level is not None if autocommit == -1 else not autocommit
    return begins or connection.in_transaction


def _of_psycopg(connection: Any) -> _Database:
    from psycopg import Cursor
    from psycopg.pq import TransactionStatus
    from psycopg.rows import tuple_row

    def in_transaction() -> bool:
        return not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE

    def execute(sql: str, values: Mapping[str, object]) -> Any:
        # The connection's own cursors and rows may be of any kind.
        return Cursor(connection, row_factory=tuple_row).execute(_pyformat(sql), values)

    return _Database("postgresql", in_transaction, execute)


def _of_sqlalchemy(connection: Any) -> _Database:
    from sqlalchemy import text

    dialect = connection.dialect.name
    if dialect not in _NOTE_IN:
        raise _not_supported(f"to a database of {dialect}")

    def in_transaction() -> bool:
        if not connection.in_transaction():
            connection.begin()  # as its next statement would
        pooled = connection.connection
        if dialect == "sqlite":
            return _sqlite_in_transaction(pooled.driver_connection)
        return not pooled.dbapi_connection.autocommit

    def execute(sql: str, values: Mapping[str, object]) -> Any:
        return connection.execute(text(sql), dict(values))

    return _Database(dialect, in_transaction, execute)


def _of_django(connection: Any) -> _Database:
    if connection.vendor not in _NOTE_IN:
        raise _not_supported(f"to a database of {connection.vendor}")

    def execute(sql: str, values: Mapping[str, object]) -> Any:
        cursor = connection.cursor()
        cursor.execute(_pyformat(sql), values)
        return cursor

    return _Database(
        connection.vendor, lambda: connection.in_atomic_block or not connection.get_autocommit(), execute
    )


def _pyformat(sql: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", sql)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value  # a text_factory of sqlite3 may be bytes
