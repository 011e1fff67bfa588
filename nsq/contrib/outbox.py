"""An outbox over SQLAlchemy: messages that are written in the transaction of your data, and published by a
relay after the commit.

    outbox.metadata.create_all(engine)

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.publish(session, "orders", b"17", key="customer-5")

    with nsq.Producer("127.0.0.1:4150") as producer:
        outbox.Relay(engine, producer).run()  # in a program of its own

``metadata`` has the tables, for ``create_all`` or Alembic's
``target_metadata = [Base.metadata, outbox.metadata]``.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from nsq import Config, Producer, UsageError
from nsq.contrib.relay import (
    LONGEST_KEY,
    SHARDS,
    BaseRelay,
    Row,
    checked_body,
    checked_defer,
    number_of_key,
    shard_of,
)
from nsq.wire.names import check_topic

try:
    import sqlalchemy as sa
except ImportError as error:
    raise ImportError("nsq.contrib.outbox needs SQLAlchemy 2: pip install sqlalchemy") from error

metadata = sa.MetaData()
# AUTOINCREMENT: SQLite would give the id of a deleted message again. A relay that lost its lease could then
# delete a message that it has not published.
messages = sa.Table(
    "nsq_outbox",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("topic", sa.String(64), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("key", sa.String(LONGEST_KEY), nullable=False),
    sa.Column("shard", sa.SmallInteger, nullable=False),
    # Times are in seconds since the epoch.
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("due_at", sa.Double),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("error", sa.String(500), nullable=False),
    sa.Column("refused_at", sa.Double),
    sqlite_autoincrement=True,
)
_waits = messages.c.refused_at.is_(None)
sa.Index("nsq_outbox_waiting", messages.c.shard, messages.c.id, postgresql_where=_waits, sqlite_where=_waits)
leases = sa.Table(
    "nsq_outbox_lease",
    metadata,
    sa.Column("shard", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("owner", sa.String(40), nullable=False),
    sa.Column("leased_until", sa.Double, nullable=False),
)
_DEFAULTS = Config()


def publish(
    connection: sa.Connection | Any,
    topic: str,
    body: bytes,
    *,
    key: str = "",
    defer: float | None = None,
    config: Config = _DEFAULTS,
) -> None:
    """Store a message in the transaction of a Connection or Session; a relay publishes it after the commit.
    Consumers get it ``defer`` seconds after this call, at the earliest. ``config`` has the limits.

    Messages with the same ``key`` are published in the order of their calls. For that, the first call with a
    key makes other transactions wait that publish with this key, until this one ends.
    """
    now = time.time()
    number = number_of_key(key)
    values = {
        "topic": check_topic(topic),
        "body": checked_body(body, config),
        "key": key,
        "shard": shard_of(key),
        "created_at": now,
        "due_at": now + defer if checked_defer(defer, config) and defer else None,
        "attempts": 0,
        "error": "",
    }
    if key:
        _lock(connection, number)
    connection.execute(messages.insert().values(values))


async def publish_async(connection: Any, topic: str, body: bytes, **options: Any) -> None:
    """Do as ``publish``, with an AsyncConnection or AsyncSession."""
    await connection.run_sync(publish, topic, body, **options)


def _lock(connection: Any, number: int) -> None:
    """Let transactions with one key write one after the other, so that their ids have the order of their
    commits.
    """
    engine = connection.get_bind() if hasattr(connection, "get_bind") else connection
    if engine.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(number)))
    elif engine.dialect.name != "sqlite":  # which has one writer at a time
        raise UsageError(f"key= needs PostgreSQL or SQLite; the database is {engine.dialect.name}")


class Relay(BaseRelay):
    """Publishes what the outbox has: ``run`` does until SIGTERM. Several relays may run at once, on any
    machines.
    """

    def __init__(self, engine: sa.Engine, producer: Producer, *, batch: int = 500) -> None:
        if not isinstance(engine, sa.Engine):
            raise UsageError(
                f"engine is a {type(engine).__name__}; it must be an Engine of SQLAlchemy, not async"
            )
        if batch < 1:
            raise UsageError(f"batch is {batch}; it must be at least 1")
        super().__init__(Tables(engine), producer, producer.config, batch, f"{engine.url!r} to {producer!r}")


class Tables:
    errors: tuple[type[Exception], ...] = (sa.exc.DBAPIError, sa.exc.TimeoutError)

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def _change(self, statement: Any) -> int:
        with self._engine.begin() as connection:
            return connection.execute(statement).rowcount

    def connect(self) -> None: ...

    def add_leases(self) -> None:
        try:
            with self._engine.begin() as connection:
                have = set(connection.scalars(sa.select(leases.c.shard)))
                lack = [
                    {"shard": each, "owner": "", "leased_until": 0.0}
                    for each in range(SHARDS)
                    if each not in have
                ]
                if lack:
                    connection.execute(leases.insert(), lack)
        except sa.exc.IntegrityError:
            self.add_leases()  # another relay has been faster

    def shards(self, without: Collection[str]) -> list[int]:
        waiting = sa.select(messages.c.shard).where(_waits, messages.c.topic.not_in(without)).distinct()
        with self._engine.begin() as connection:
            return list(connection.scalars(waiting))

    def read(self, shard: int, without: Collection[str], limit: int) -> list[Row]:
        c = messages.c
        mine = sa.select(c.id, c.topic, c.body, c.due_at).where(
            _waits, c.topic.not_in(without), c.shard == shard
        )
        with self._engine.begin() as connection:
            return [Row(*row) for row in connection.execute(mine.order_by(c.id).limit(limit))]

    def take(self, shard: int, owner: str, now: float, until: float) -> bool:
        free = leases.update().where(leases.c.shard == shard, leases.c.leased_until < now)
        return bool(self._change(free.values(owner=owner, leased_until=until)))

    def renew(self, shard: int, owner: str, now: float, until: float) -> bool:
        mine = leases.update().where(
            leases.c.shard == shard, leases.c.owner == owner, leases.c.leased_until > now
        )
        return bool(self._change(mine.values(leased_until=until)))

    def release(self, shard: int, owner: str) -> None:
        mine = leases.update().where(leases.c.shard == shard, leases.c.owner == owner)
        self._change(mine.values(leased_until=0.0))

    def delete(self, ids: list[int]) -> None:
        self._change(messages.delete().where(messages.c.id.in_(ids)))

    def note(self, ids: list[int], error: str, refused: bool) -> None:
        fields = {"refused_at": time.time()} if refused else {}
        attempt = messages.update().where(messages.c.id.in_(ids))
        self._change(attempt.values(attempts=messages.c.attempts + 1, error=error, **fields))
