"""What one task of a write does: its rows, published. Imports no Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from nsq.errors import UsageError
from nsq.producer import Producer
from nsq.spark.sink.columns import Columns
from nsq.spark.sink.markers import Content, Markers
from nsq.spark.sink.options import SinkOptions
from nsq.spark.sink.packing import Packer
from nsq.spark.sink.pipeline import Pipeline, Publisher
from nsq.spark.sink.rows import Reader, Rows

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("nsq.spark")

#: For connections to end in good order, and no publish to wait for.
_CLOSING = 1.0


class Resumption(NamedTuple):
    """Where it is written down that this partition is published."""

    markers: Markers
    batch: int
    partition: int


class Outcome(NamedTuple):
    """``messages`` that this task has published; ``skipped`` were published by an earlier run."""

    messages: int
    bytes: int
    skipped: int = 0


class Task:
    """``columns`` were checked when the query was planned."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._reader = Reader(columns, options.topic, options.config)

    def run(self, batches: Iterable[pa.RecordBatch], resumption: Resumption | None = None) -> Outcome:
        """With a resumption, nothing is published that was, and what is published now is written down."""
        if resumption is not None:
            done = resumption.markers.read(resumption.batch, resumption.partition)
            if done is not None:
                self._compare(done, batches, resumption)
                return Outcome(0, 0, skipped=done.rows)
        options = self._options
        producer = Producer(*options.nsqd, nsqlookupd=options.lookupd, config=options.config)
        try:
            outcome, content = self._publish(producer, batches, remember=resumption is not None)
        finally:
            producer.close(_CLOSING)
        if resumption is not None:
            resumption.markers.write(resumption.batch, resumption.partition, content)
        return outcome

    def _publish(
        self, publisher: Publisher, batches: Iterable[pa.RecordBatch], *, remember: bool
    ) -> tuple[Outcome, Content]:
        options, content = self._options, Content()
        pipeline = Pipeline(
            publisher,
            room=options.pipeline * options.mpub_messages,
            retries=options.retries,
            timeout=options.timeout,
        )
        packer = Packer(options.mpub_messages, options.mpub_bytes)
        try:
            for batch in batches:
                for rows in self._reader.read(batch):
                    content = content.plus(rows.bodies) if remember else content
                    _hand_over(rows, packer, pipeline)
            for pack in packer.rest():
                pipeline.publish(pack)
            pipeline.drain()
        except BaseException:
            log.warning("a task failed when at least %d of its messages were published", pipeline.messages)
            raise
        return Outcome(pipeline.messages, pipeline.bytes), content

    def _compare(self, done: Content, batches: Iterable[pa.RecordBatch], resumption: Resumption) -> None:
        content = Content()
        for batch in batches:
            for rows in self._reader.read(batch):
                content = content.plus(rows.bodies)
        if content != done:
            raise UsageError(
                f"partition {resumption.partition} of batch {resumption.batch} is not what it was when it "
                f"was published ({done}; now {content}): resume=partition is for plans that make the same "
                "partitions every time; with resume=none the batch is published again, as a whole"
            )


def _hand_over(rows: Rows, packer: Packer, pipeline: Pipeline) -> None:
    now = rows.bodies
    if rows.delays is not None:
        pairs = list(zip(rows.bodies, rows.delays, strict=True))
        now = [body for body, delay in pairs if not delay]
        for body, delay in pairs:
            if delay:
                pipeline.defer(rows.topic, body, delay)
    for pack in packer.add(rows.topic, now):
        pipeline.publish(pack)
