"""Publishing from Django: at once, or when the transaction commits, over one producer for the process.

The producer is made for the first publish and closed at the end of the process. A forked child (gunicorn with
``--preload``) goes on with connections of its own.

A *backend* is a module with ``publish`` and ``multi_publish``. This module is the one that publishes to nsqd;
its functions ask for the backend of the settings, which in tests is ``nsq.contrib.django.locmem``.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

from django.core.signals import setting_changed
from django.db import connections, transaction

from nsq import NsqError, Producer
from nsq.contrib.django.conf import NSQD_BACKEND, Settings, read_settings
from nsq.errors import InvalidMessage
from nsq.wire.names import check_topic

#: Limits of one multi_publish; nsqd's own limit for a body is 5 MiB by default.
_MOST_MESSAGES, _MOST_BYTES = 1000, 512 * 1024
#: Seconds; the shortest timeout of a publish.
_LEAST_TIMEOUT = 0.001

# One entry each, made at first use and shared by all threads. No lock: a fork could inherit it locked.
_settings: dict[str, Settings] = {}
_producers: dict[str, Producer] = {}


def current_settings() -> Settings:
    read = _settings.get("NSQ")
    return read if read is not None else _settings.setdefault("NSQ", read_settings())


def producer() -> Producer:
    """Return the producer of this process."""
    found = _producers.get("NSQ")
    if found is None:
        read = current_settings()
        # To make one starts no thread and no connection.
        mine = Producer(
            nsqd=read.nsqd, nsqlookupd=read.nsqlookupd, config=read.config, transport=read.transport
        )
        found = _producers.setdefault("NSQ", mine)
        if found is mine:
            atexit.register(mine.close)
        else:  # another thread was faster
            mine.close()
    return found


def _forget(*, setting: str, **_: object) -> None:
    """Begin anew when a test overrides the setting."""
    if setting == "NSQ":
        _settings.clear()
        old = _producers.pop("NSQ", None)
        if old is not None:
            old.close()
            atexit.unregister(old.close)


setting_changed.connect(_forget)


def _backend() -> Any:
    """Return the module of the settings, or the process's producer."""
    name = current_settings().backend
    return producer() if name == NSQD_BACKEND else import_module(name)


def publish(topic: str, body: bytes, *, defer: float | None = None, timeout: float | None = None) -> None:
    """Return when an nsqd has stored the message; raise as ``nsq.Producer.publish`` does.

    Inside a transaction the message is sent before the commit, and also if the transaction is rolled back:
    there, use ``publish_on_commit``.
    """
    _backend().publish(topic, body, defer=defer, timeout=timeout)


def multi_publish(topic: str, bodies: Iterable[bytes], *, timeout: float | None = None) -> None:
    """Publish all messages at once to one nsqd, as ``nsq.Producer.multi_publish`` does."""
    _backend().multi_publish(topic, bodies, timeout=timeout)


# On commit


class _Pending(NamedTuple):
    topic: str
    body: bytes
    defer: float | None


class _Batch:
    """The messages of one transaction.

    Each message adds two commit hooks: ``collect`` belongs to the savepoints around it, so that Django drops
    it if one of them is rolled back, and ``flush`` to none of them. The last ``flush`` publishes.
    """

    def __init__(self) -> None:
        self.collected: list[_Pending] = []
        self.latest: _Flush | None = None


class _Flush:
    def __init__(self, batch: _Batch) -> None:
        self.batch = batch
        batch.latest = self
        self.__qualname__ = "publish_on_commit"  # Django logs it when a robust hook fails

    def __call__(self) -> None:
        if self.batch.latest is self:
            collected, self.batch.collected = self.batch.collected, []
            publish_all(collected, current_settings().on_commit_timeout)


def publish_on_commit(
    topic: str, body: bytes, *, defer: float | None = None, using: str | None = None, robust: bool = False
) -> None:
    """Publish when the current transaction of the database ``using`` commits; at once if there is none.

    Nothing is sent if the transaction, or the ``atomic`` block around the call, is rolled back. The messages
    of a transaction leave together, one batch for each topic. Together they have the time
    ``ON_COMMIT_TIMEOUT``. If they cannot be published, the data is committed already: then the error leaves
    the outermost ``atomic``, or with ``robust=True`` it is logged, and the messages are lost either way. Use
    the outbox where that must not happen.
    """
    pending = _Pending(check_topic(topic), checked_body(body), checked_defer(defer))
    connection = connections[using or "default"]
    if not connection.in_atomic_block:
        timeout = current_settings().on_commit_timeout
        transaction.on_commit(lambda: publish_all([pending], timeout), using, robust)
        return
    hooks = connection.run_on_commit
    flushes = (hook for _, hook, its in reversed(hooks) if isinstance(hook, _Flush) and its == robust)
    batch = next((flush.batch for flush in flushes), None) or _Batch()
    transaction.on_commit(lambda: batch.collected.append(pending), using, robust)
    # No savepoints: a rollback to one must not drop it, as messages from before the savepoint wait too.
    hooks.append((set(), _Flush(batch), robust))


def checked_body(body: bytes) -> bytes:
    """Return a copy of a body that nsqd can take; raise InvalidMessage for any other."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidMessage(f"a body must be bytes, not {type(body).__name__}")
    most = current_settings().config.max_msg_size
    if not 0 < len(body) <= most:
        raise InvalidMessage(f"a body has {len(body)} bytes; it must have 1 to {most} (max_msg_size)")
    return bytes(body)


def checked_defer(defer: float | None) -> float | None:
    """Return the seconds; raise InvalidMessage if nsqd does not defer for so long."""
    most = current_settings().config.max_defer
    if defer is not None and not 0 <= defer <= most:
        raise InvalidMessage(f"defer is {defer!r}; it must be 0 to {most:g} seconds (max_defer)")
    return defer


def publish_all(messages: Iterable[_Pending], timeout: float) -> None:
    """Publish every message within ``timeout``, batch by batch. Raise the first error when all were tried."""
    deadline = time.monotonic() + timeout
    backend = _backend()
    by_topic: dict[str, list[bytes]] = {}
    deferred = []
    for message in messages:
        if message.defer is None:
            by_topic.setdefault(message.topic, []).append(message.body)
        else:
            deferred.append(message)
    errors = []
    for topic, bodies in by_topic.items():
        for batch in cut(bodies):
            try:
                backend.multi_publish(topic, batch, timeout=_left(deadline))
            except NsqError as error:
                errors.append((f"{len(batch)} for {topic}", error))
    for topic, body, defer in deferred:
        try:
            backend.publish(topic, body, defer=defer, timeout=_left(deadline))
        except NsqError as error:
            errors.append((f"1 for {topic}", error))
    if errors:
        first = errors[0][1]
        first.add_note(f"messages not published: {', '.join(counted for counted, _ in errors)}")
        raise first


def _left(deadline: float) -> float:
    return max(_LEAST_TIMEOUT, deadline - time.monotonic())


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
