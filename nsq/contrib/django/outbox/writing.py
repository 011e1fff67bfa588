"""Writing to the outbox, within the transaction of the data."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.checks import CheckMessage, Error
from django.db import connections, router, transaction
from django.utils import timezone

from nsq import UsageError
from nsq.contrib.django.outbox.models import OutboxMessage
from nsq.contrib.django.publishing import checked_body, checked_defer
from nsq.contrib.relay import number_of_key, shard_of
from nsq.wire.names import check_topic


def publish(
    topic: str, body: bytes, *, key: str = "", defer: float | None = None, using: str | None = None
) -> None:
    """Store a message in the current transaction; a relay publishes it after the commit. Consumers get it
    ``defer`` seconds after this call, at the earliest.

    Messages with the same ``key`` are published in the order of their calls. For that, the first call with a
    key makes other transactions wait that publish with this key, until this one ends.
    """
    number = number_of_key(key)
    alias = using or router.db_for_write(OutboxMessage)
    message = OutboxMessage(topic=check_topic(topic), body=checked_body(body), key=key, shard=shard_of(key))
    if checked_defer(defer):
        message.due_at = timezone.now() + timedelta(seconds=defer or 0.0)
    with transaction.atomic(using=alias, savepoint=False):
        if key:
            _lock(alias, number)
        message.save(using=alias, force_insert=True)


def _lock(alias: str, number: int) -> None:
    """Let transactions with one key write one after the other, so that their ids have the order of their
    commits.
    """
    connection = connections[alias]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [number])
    elif connection.vendor != "sqlite":  # which has one writer at a time
        raise UsageError(f"key= needs PostgreSQL or SQLite; the database {alias!r} is {connection.vendor}")


def check_database(alias: str = "", **_: Any) -> list[CheckMessage]:
    """Check the database of an outbox, by default that of ``publish``."""
    alias = alias or router.db_for_write(OutboxMessage)
    mode = str(connections.settings[alias]["OPTIONS"].get("transaction_mode", "")).upper()
    if connections[alias].vendor != "sqlite" or mode == "IMMEDIATE":
        return []
    return [
        Error(
            f"the outbox in the SQLite database {alias!r} needs transactions that begin as writers: others "
            "fail with 'database is locked'",
            hint="Set OPTIONS = {'transaction_mode': 'IMMEDIATE'}.",
            id="nsq.E006",
        )
    ]
