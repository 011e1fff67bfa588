"""What one task of a write does: packs its rows into MPUBs, and keeps several under way. Imports no Spark."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from nsq.errors import ConfigError, NsqError
from nsq.producer import Producer
from nsq.spark.options import Nsqds, duration, option, size, whole
from nsq.spark.sink.rows import Columns, Reader, Rows
from nsq.wire.commands import Limits
from nsq.wire.names import check_topic

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("nsq.spark")

# What it can be told


_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class SinkOptions(Nsqds):
    """Durations are seconds here, sizes bytes."""

    instead_of_kafka: ClassVar[Mapping[str, str]] = {
        "kafka.bootstrap.servers": "nsqd or lookupd",
        "includeheaders": "not there",
    }

    topic: str = option("The topic to publish to; without it, each row's column topic.", default="")
    mpub_messages: int = option("The most messages published at once.", whole, default=500, low=1)
    mpub_bytes: int = option(
        "The most bytes published at once; a larger message travels alone.", size, default=_MIB, low=1
    )
    pipeline: int = option(
        "Full publishes that a task has under way while it makes the next one.", whole, default=8, low=1
    )
    retries: int = option(
        "How often a publish is tried anew that failed, or was not answered.", whole, default=3, low=0
    )
    timeout: float = option(
        "The longest a publish may take each time, trying one nsqd after the other.",
        duration,
        default=30.0,
        low=0.001,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topic:
            check_topic(self.topic)
        most = Limits().max_body_size
        if self.mpub_bytes > most:
            raise ConfigError(
                f"mpubBytes is {self.mpub_bytes}, but must be at most {most} (nsqd's --max-body-size)"
            )


# Which bodies travel together in one MPUB


#: What MPUB adds: its count, and the size of each body.
_HEAD = 4
_PER_BODY = 4


class Pack(NamedTuple):
    """``size`` counts the bytes of the bodies."""

    topic: str
    bodies: Sequence[bytes]
    size: int


def packs(topic: str, bodies: Iterable[bytes], most_messages: int, most_bytes: int) -> Iterator[Pack]:
    """``most_messages`` and ``most_bytes`` limit a pack; a single body larger than that is a pack as well."""
    held: list[bytes] = []
    size = 0
    for body in bodies:
        if held and (
            len(held) == most_messages or _HEAD + size + len(body) + _PER_BODY * (len(held) + 1) > most_bytes
        ):
            yield Pack(topic, held, size)
            held, size = [], 0
        held.append(body)
        size += len(body)
    if held:
        yield Pack(topic, held, size)


# Publishes under way: so many at once, each tried anew as often as it may be, none forgotten


class _Attempt(NamedTuple):
    future: Future[None]
    send: Callable[[], Future[None]]
    messages: int
    size: int
    tries: int


class Pipeline:
    """``room`` counts messages, so that one which is deferred, and has to travel alone, takes the room of
    one. For a single thread.
    """

    def __init__(self, publisher: Producer, *, room: int, retries: int, timeout: float) -> None:
        self.messages = 0
        """That nsqds have stored."""
        self.bytes = 0
        self._publisher = publisher
        self._room = room
        self._retries = retries
        self._timeout = timeout
        self._attempts: deque[_Attempt] = deque()
        self._inside = 0

    def publish(self, pack: Pack) -> None:
        self._enter(
            lambda: self._publisher.multi_publish_async(pack.topic, pack.bodies, timeout=self._timeout),
            len(pack.bodies),
            pack.size,
        )

    def defer(self, topic: str, body: bytes, delay: float) -> None:
        self._enter(
            lambda: self._publisher.publish_async(topic, body, defer=delay, timeout=self._timeout),
            1,
            len(body),
        )

    def drain(self) -> None:
        """Wait for all of them; raises for the first that came to nothing."""
        while self._attempts:
            self._settle(self._attempts.popleft())

    def _enter(self, send: Callable[[], Future[None]], messages: int, size: int) -> None:
        while self._attempts and self._inside + messages > self._room:
            self._settle(self._attempts.popleft())
        self._inside += messages
        self._attempts.append(_Attempt(send(), send, messages, size, 1))

    def _settle(self, attempt: _Attempt) -> None:
        """The oldest: wait for what becomes of it."""
        try:
            attempt.future.result()  # has a deadline of its own
        except NsqError as error:
            if not error.retry or attempt.tries > self._retries:
                raise
            log.warning("publishing %d messages again: %s", attempt.messages, error)
            self._attempts.append(attempt._replace(future=attempt.send(), tries=attempt.tries + 1))
            return
        self._inside -= attempt.messages
        self.messages += attempt.messages
        self.bytes += attempt.size


# The task


#: For connections to end in good order, and no publish to wait for.
_CLOSING = 1.0


class Outcome(NamedTuple):
    """The messages that a task has published, and the bytes of their bodies."""

    messages: int
    bytes: int


class Task:
    """``columns`` were checked when the query was planned."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._reader = Reader(columns, options.topic, options.config)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        options = self._options
        producer = Producer(*options.nsqd, nsqlookupd=options.lookupd, config=options.config)
        try:
            return self._publish(producer, batches)
        finally:
            producer.close(_CLOSING)

    def _publish(self, publisher: Producer, batches: Iterable[pa.RecordBatch]) -> Outcome:
        options = self._options
        pipeline = Pipeline(
            publisher,
            room=options.pipeline * options.mpub_messages,
            retries=options.retries,
            timeout=options.timeout,
        )
        try:
            for batch in batches:
                for rows in self._reader.read(batch):
                    self._hand_over(rows, pipeline)
            pipeline.drain()
        except BaseException:
            log.warning("a task failed when at least %d of its messages were published", pipeline.messages)
            raise
        return Outcome(pipeline.messages, pipeline.bytes)

    def _hand_over(self, rows: Rows, pipeline: Pipeline) -> None:
        now = rows.bodies
        if rows.delays is not None:
            pairs = list(zip(rows.bodies, rows.delays, strict=True))
            now = [body for body, delay in pairs if not delay]
            for body, delay in pairs:
                if delay:
                    pipeline.defer(rows.topic, body, delay)
        for pack in packs(rows.topic, now, self._options.mpub_messages, self._options.mpub_bytes):
            pipeline.publish(pack)
