"""The relay: publishes what the outbox has, shard by shard. Any number of relays may run.

For each shard with messages: lease it, read its oldest messages, publish them, delete them. Each step is a
transaction of its own, so that no lock is held while nsqd is slow. One relay at a time has the lease of a
shard, and it publishes in the order of the ids; so messages of a key, which are of one shard, keep their
order. A relay that is killed may have published a batch that it has not deleted: that is published again.

Leases and due times are compared with the clocks of the machines of relays and writers, which must agree
within half of ``_CLOCKS``.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.models import F
from django.utils import timezone

from nsq import NsqError
from nsq.contrib.django.conf import NSQD_BACKEND
from nsq.contrib.django.connections import close_old_connections
from nsq.contrib.django.outbox.models import SHARDS, OutboxMessage, Shard
from nsq.contrib.django.publishing import current_settings, cut, multi_publish
from nsq.contrib.django.publishing import publish as publish_one
from nsq.errors import BadBody, BadMessage, BadTopic, InvalidCommand, InvalidMessage, InvalidName
from nsq.log import Logger
from nsq.pauses import doubled

log = Logger("nsq.contrib.django")

#: nsqd refuses these for what is in the message; another attempt cannot succeed.
_FINAL = (BadBody, BadMessage, BadTopic, InvalidMessage, InvalidName)
#: Seconds: what a lease has beyond two publishes; the first and the longest pause after an error.
_CLOCKS, _FIRST_PAUSE, _LONGEST_PAUSE = 20.0, 0.5, 30.0


class LeaseLost(Exception):
    """Another relay has the shard, because this one was too slow."""


class Relay:
    """``stopped`` is asked between batches."""

    def __init__(self, using: str, batch: int, stopped: Callable[[], bool]) -> None:
        self._batch = batch
        self._stopped = stopped
        self._owner = uuid.uuid4().hex
        self._messages = OutboxMessage.objects.using(using)
        self._shards = Shard.objects.using(using)
        config = current_settings().config
        self._timeout, self._longest = config.publish_timeout, config.max_defer
        # Long enough for a publish that times out, and another one.
        self._lease = 2 * self._timeout + _CLOCKS
        self._lease_ends = 0.0  # of the current shard, on the monotonic clock
        self._failures = 0
        self._told: set[type[Exception] | str] = set()  # problems that were logged and are not over
        self._prepared = False
        self.refused: dict[str, float] = {}
        """Topics that nsqd has refused, as to an unauthorized client, and when to try them again."""

    def begin(self) -> None:
        """Log from where to where messages are relayed."""
        database, read = self._messages.db, current_settings()
        connection = connections[database]
        nsqds = ", ".join([*read.nsqd, *(f"those of nsqlookupd {address}" for address in read.nsqlookupd)])
        log.info(
            "relays the outbox from the database %r (%s, %s) to %s",
            database,
            connection.vendor,
            connection.settings_dict["NAME"],
            nsqds if read.backend == NSQD_BACKEND else read.backend,
        )

    def run_once(self) -> float | None:
        """Publish a batch of each shard; return the seconds to pause before the next call. None means that
        nothing waits which this relay can take.
        """
        close_old_connections()
        try:
            if not self._prepared:
                shards = [Shard(number=each) for each in range(SHARDS)]
                self._shards.bulk_create(shards, ignore_conflicts=True)
                self._prepared = True
            done = self._publish_shards()
        except (DatabaseError, InterfaceError) as error:
            return self._pause("the database fails", error)
        except NsqError as error:
            return self._pause("cannot publish", error)
        if self._failures:
            log.info("the relay works again")
            self._failures = 0
            self._told = {each for each in self._told if isinstance(each, str)}
        return 0.0 if done else None

    def _pause(self, problem: str, error: Exception) -> float:
        pause = doubled(_FIRST_PAUSE, _LONGEST_PAUSE, self._failures)
        self._failures += 1
        ahead = f"the messages wait, and the relay tries again after pauses of up to {_LONGEST_PAUSE:g} s"
        self._tell(type(error), f"{problem}: {error}; {ahead}")
        return pause

    def _tell(self, key: type[Exception] | str, text: str) -> None:
        """Log a problem when it begins, not at each attempt."""
        if key not in self._told:
            self._told.add(key)
            log.error("%s", text)

    def _publish_shards(self) -> int:
        """Publish one batch of every shard that can be leased; return the number of messages."""
        now = time.monotonic()
        self.refused = {topic: at for topic, at in self.refused.items() if at > now}
        shards = list(self._waiting().order_by().values_list("shard", flat=True).distinct())
        random.shuffle(shards)
        done = 0
        for number in shards:
            if self._stopped():
                break
            if self._take(number, time.time()):
                try:
                    done += self._publish_batch(number)
                except LeaseLost:
                    log.warning("another relay has taken over the shard %d", number)
                finally:
                    self._mine(number).update(leased_until=0.0)
        return done

    def _waiting(self) -> Any:
        return self._messages.filter(refused_at=None).exclude(topic__in=list(self.refused))

    # Leases

    def _take(self, number: int, now: float) -> bool:
        """Lease a shard whose lease has ended. One statement, which the database runs for one relay at a
        time.
        """
        before = time.monotonic()
        free = self._shards.filter(number=number, leased_until__lt=now)
        self._lease_ends = before + self._lease
        return bool(free.update(owner=self._owner, leased_until=now + self._lease))

    def _mine(self, number: int) -> Any:
        return self._shards.filter(number=number, owner=self._owner)

    def _keep(self, number: int) -> None:
        """Renew the lease unless a publish that begins now surely ends within it."""
        before = time.monotonic()
        if self._lease_ends - before > self._timeout + _CLOCKS / 2:
            return
        now = time.time()
        renewed = self._mine(number).filter(leased_until__gt=now).update(leased_until=now + self._lease)
        if not renewed:
            raise LeaseLost
        self._lease_ends = before + self._lease

    # Publishing

    def _publish_batch(self, number: int) -> int:
        rows = list(self._waiting().filter(shard=number).order_by("id")[: self._batch])
        by_topic: dict[str, list[OutboxMessage]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        for topic, several in by_topic.items():
            try:
                self._publish_topic(number, topic, several)
            except NsqError as error:
                if error.retry:
                    raise  # other topics would fail too
                self.refused[topic] = time.monotonic() + _LONGEST_PAUSE
                self._tell(
                    topic, f"cannot publish to {topic}: {error}; tried again every {_LONGEST_PAUSE:g} s"
                )
            else:
                self._told.discard(topic)
        return len(rows)

    def _publish_topic(self, number: int, topic: str, rows: list[OutboxMessage]) -> None:
        # A deferred message goes alone, between those before and behind it.
        for deferred, neighbours in groupby(rows, lambda row: row.due_at is not None):
            if deferred:
                self._publish_each(number, neighbours)
            else:
                self._publish_together(number, topic, list(neighbours))

    def _publish_together(self, number: int, topic: str, rows: list[OutboxMessage]) -> None:
        for bodies in cut(bytes(row.body) for row in rows):
            self._keep(number)
            part, rows = rows[: len(bodies)], rows[len(bodies) :]
            self._publish_part(number, topic, part, bodies)

    def _publish_part(self, number: int, topic: str, rows: list[OutboxMessage], bodies: list[bytes]) -> None:
        try:
            multi_publish(topic, bodies, timeout=self._timeout)
        except _FINAL:
            # Some of them are at fault: find out which.
            self._publish_each(number, rows)
        except NsqError as error:
            self._note(rows, error)
            raise
        else:
            self._messages.filter(pk__in=[row.pk for row in rows]).delete()

    def _publish_each(self, number: int, rows: Iterable[OutboxMessage]) -> None:
        for row in rows:
            self._keep(number)
            self._publish_alone(row)

    def _publish_alone(self, row: OutboxMessage) -> None:
        left = 0.0 if row.due_at is None else (row.due_at - timezone.now()).total_seconds()
        if self._longest < left <= self._longest + _CLOCKS / 2:  # our clock is behind the writer's
            left = self._longest
        # To a deferred message nsqd answers E_INVALID when it does not defer for so long.
        final = (*_FINAL, InvalidCommand) if left > 0 else _FINAL
        try:
            publish_one(row.topic, bytes(row.body), defer=left if left > 0 else None, timeout=self._timeout)
        except final as error:
            log.error("the message %s is set aside, as nsqd refuses it: %s", row, error)
            self._note([row], error, refused_at=timezone.now())
        except NsqError as error:
            self._note([row], error)
            raise
        else:
            self._messages.filter(pk=row.pk).delete()

    def _note(self, rows: list[OutboxMessage], error: NsqError, **fields: object) -> None:
        chosen = self._messages.filter(pk__in=[row.pk for row in rows])
        chosen.update(attempts=F("attempts") + 1, error=str(error)[:500], **fields)
