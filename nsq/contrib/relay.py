"""The relay of an outbox: publishes what the outbox has, shard by shard. Any number of relays may run.

For each shard with messages: lease it, read its oldest messages, publish them, delete them. Each step is a
transaction of its own, so that no lock is held while nsqd is slow. One relay at a time has the lease of a
shard, and it publishes in the order of the ids; so messages of a key, which are of one shard, keep their
order. A relay that is killed may have published a batch that it has not deleted: that is published again.

Leases and due times are compared with the clocks of the machines of relays and writers, which must agree
within half of ``_CLOCKS``. The tables are behind a ``Store``: one over Django, one over SQLAlchemy.
"""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from nsq import Config, NsqError
from nsq.errors import BadBody, BadMessage, BadTopic, InvalidCommand, InvalidMessage, InvalidName
from nsq.log import Logger
from nsq.pauses import doubled
from nsq.threads.signals import SignalWatch

log = Logger("nsq.contrib.outbox")

#: Each message belongs to a shard, by its key. A relay works on a whole shard at a time.
SHARDS = 16
LONGEST_KEY = 200

#: nsqd refuses these for what is in the message; another attempt cannot succeed.
_FINAL = (BadBody, BadMessage, BadTopic, InvalidMessage, InvalidName)
#: Seconds: what a lease has beyond two publishes; the first and the longest pause after an error.
_CLOCKS, _FIRST_PAUSE, _LONGEST_PAUSE = 20.0, 0.5, 30.0
#: Limits of one multi_publish; nsqd's own limit for a body is 5 MiB by default.
_MOST_MESSAGES, _MOST_BYTES = 1000, 512 * 1024


# What is written


def checked_body(body: bytes, config: Config) -> bytes:
    """Return a copy of a body that nsqd can take; raise InvalidMessage for any other."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidMessage(f"a body must be bytes, not {type(body).__name__}")
    most = config.max_msg_size
    if not 0 < len(body) <= most:
        raise InvalidMessage(f"a body has {len(body)} bytes; it must have 1 to {most} (max_msg_size)")
    return bytes(body)


def checked_defer(defer: float | None, config: Config) -> float | None:
    """Return the seconds; raise InvalidMessage if nsqd does not defer for so long."""
    most = config.max_defer
    if defer is not None and not 0 <= defer <= most:
        raise InvalidMessage(f"defer is {defer!r}; it must be 0 to {most:g} seconds (max_defer)")
    return defer


def number_of_key(key: str) -> int:
    """Return a number of 64 bits for a key: transactions that write the key lock it."""
    if not isinstance(key, str) or len(key) > LONGEST_KEY:
        raise InvalidMessage(f"key is {key!r}; it must be a text of at most {LONGEST_KEY} characters")
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big", signed=True)


def shard_of(key: str) -> int:
    return number_of_key(key) % SHARDS if key else random.randrange(SHARDS)


def cut(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Cut bodies into batches that nsqd takes at once."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (len(batch) >= _MOST_MESSAGES or size + len(body) > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


# What is read


class Row(NamedTuple):
    """A message in the outbox; ``due_at`` is when consumers get it, in seconds since the epoch."""

    id: int
    topic: str
    body: bytes
    due_at: float | None


class Store(Protocol):
    """The tables. Each method is a transaction of its own; times are in seconds since the epoch."""

    #: What a method raises when the database fails.
    errors: tuple[type[Exception], ...]

    def connect(self) -> None:
        """Drop connections that are too old. Called before each round."""

    def add_leases(self) -> None:
        """Make the lease of each shard that has none."""

    def shards(self, without: Collection[str]) -> list[int]:
        """Return the shards that have messages which wait, those of the topics ``without`` left out."""

    def read(self, shard: int, without: Collection[str], limit: int) -> list[Row]:
        """Return the oldest of these messages."""

    def take(self, shard: int, owner: str, now: float, until: float) -> bool:
        """Lease a shard whose lease has ended. One statement, which the database runs for one relay at a
        time.
        """

    def renew(self, shard: int, owner: str, now: float, until: float) -> bool:
        """Extend a lease that the owner has and that has not ended."""

    def release(self, shard: int, owner: str) -> None: ...

    def delete(self, ids: list[int]) -> None: ...

    def note(self, ids: list[int], error: str, refused: bool) -> None:
        """Count an attempt and its error; ``refused``: set the messages aside."""


class Publisher(Protocol):
    """A producer, or what publishes like one."""

    def publish(
        self, topic: str, body: bytes, *, defer: float | None = None, timeout: float | None = None
    ) -> Any: ...

    def multi_publish(self, topic: str, bodies: list[bytes], *, timeout: float | None = None) -> Any: ...


class LeaseLost(Exception):
    """Another relay has the shard, because this one was too slow."""


class BaseRelay:
    """``batch`` is the number of messages that are read at a time; ``route`` says from where to where, for
    the log.
    """

    def __init__(self, store: Store, publisher: Publisher, config: Config, batch: int, route: str) -> None:
        self._store = store
        self._publisher = publisher
        self._batch = batch
        self._route = route
        self._owner = uuid.uuid4().hex
        self._timeout, self._longest = config.publish_timeout, config.max_defer
        # Long enough for a publish that times out, and another one.
        self._lease = 2 * self._timeout + _CLOCKS
        self._lease_ends = 0.0  # of the current shard, on the monotonic clock
        self._failures = 0
        self._told: set[type[Exception] | str] = set()  # problems that were logged and are not over
        self._prepared = False
        self._watch: SignalWatch | None = None  # while `run` runs
        self._stopping = False
        self.refused: dict[str, float] = {}
        """Topics that nsqd has refused, as to an unauthorized client, and when to try them again."""

    def run(self, *, poll: float = 1.0, once: bool = False) -> bool:
        """Publish what the outbox has until SIGTERM, SIGINT or ``stop``; look every ``poll`` seconds.

        With ``once``, end when nothing waits, or when something cannot be published: then return False.
        """
        log.info("relays the outbox from %s", self._route)
        with SignalWatch() as self._watch:
            try:
                while not self._stop_requested():
                    pause = self.run_once()
                    if once and (pause or (pause is None and self.refused)):
                        return False
                    if once and pause is None:
                        return True
                    self._wait(poll if pause is None else pause)
            finally:
                self._watch = None
        return True

    def stop(self) -> None:
        """Let ``run`` end after the batch under way. Any thread may call this."""
        self._stopping = True
        watch = self._watch
        if watch is not None:
            watch.wake()

    def _wait(self, seconds: float) -> None:
        if self._watch is not None and self._watch.wait(seconds) is not None:
            self._stopping = True

    def _stop_requested(self) -> bool:
        self._wait(0.0)
        return self._stopping

    def run_once(self) -> float | None:
        """Publish a batch of each shard; return the seconds to pause before the next call. None means that
        nothing waits which this relay can take.
        """
        try:
            self._store.connect()
            if not self._prepared:
                self._store.add_leases()
                self._prepared = True
            done = self._publish_shards()
        except self._store.errors as error:
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
        shards = self._store.shards(self.refused.keys())
        random.shuffle(shards)
        done = 0
        for shard in shards:
            if self._stop_requested():
                break
            if self._take(shard, time.time()):
                try:
                    done += self._publish_batch(shard)
                except LeaseLost:
                    log.warning("another relay has taken over the shard %d", shard)
                finally:
                    self._store.release(shard, self._owner)
        return done

    # Leases

    def _take(self, shard: int, now: float) -> bool:
        self._lease_ends = time.monotonic() + self._lease
        return self._store.take(shard, self._owner, now, now + self._lease)

    def _keep(self, shard: int) -> None:
        """Renew the lease unless a publish that begins now surely ends within it."""
        before = time.monotonic()
        if self._lease_ends - before > self._timeout + _CLOCKS / 2:
            return
        now = time.time()
        if not self._store.renew(shard, self._owner, now, now + self._lease):
            raise LeaseLost
        self._lease_ends = before + self._lease

    # Publishing

    def _publish_batch(self, shard: int) -> int:
        rows = self._store.read(shard, self.refused.keys(), self._batch)
        by_topic: dict[str, list[Row]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        for topic, several in by_topic.items():
            try:
                self._publish_topic(shard, topic, several)
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

    def _publish_topic(self, shard: int, topic: str, rows: list[Row]) -> None:
        # A deferred message goes alone, between those before and behind it.
        for deferred, neighbours in groupby(rows, lambda row: row.due_at is not None):
            if deferred:
                self._publish_each(shard, neighbours)
            else:
                self._publish_together(shard, topic, list(neighbours))

    def _publish_together(self, shard: int, topic: str, rows: list[Row]) -> None:
        for bodies in cut(row.body for row in rows):
            self._keep(shard)
            part, rows = rows[: len(bodies)], rows[len(bodies) :]
            self._publish_part(shard, topic, part, bodies)

    def _publish_part(self, shard: int, topic: str, rows: list[Row], bodies: list[bytes]) -> None:
        try:
            self._publisher.multi_publish(topic, bodies, timeout=self._timeout)
        except _FINAL:
            # Some of them are at fault: find out which.
            self._publish_each(shard, rows)
        except NsqError as error:
            self._note(rows, error)
            raise
        else:
            self._store.delete([row.id for row in rows])

    def _publish_each(self, shard: int, rows: Iterable[Row]) -> None:
        for row in rows:
            self._keep(shard)
            self._publish_alone(row)

    def _publish_alone(self, row: Row) -> None:
        left = 0.0 if row.due_at is None else row.due_at - time.time()
        if self._longest < left <= self._longest + _CLOCKS / 2:  # our clock is behind the writer's
            left = self._longest
        # To a deferred message nsqd answers E_INVALID when it does not defer for so long.
        final = (*_FINAL, InvalidCommand) if left > 0 else _FINAL
        try:
            self._publisher.publish(
                row.topic, row.body, defer=left if left > 0 else None, timeout=self._timeout
            )
        except final as error:
            log.error("the message %s %s is set aside, as nsqd refuses it: %s", row.topic, row.id, error)
            self._note([row], error, refused=True)
        except NsqError as error:
            self._note([row], error)
            raise
        else:
            self._store.delete([row.id])

    def _note(self, rows: list[Row], error: NsqError, refused: bool = False) -> None:
        self._store.note([row.id for row in rows], str(error)[:500], refused)
