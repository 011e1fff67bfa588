"""Publishing from Spark: each row's ``body`` becomes a message.

    (df.selectExpr("to_json(struct(*)) AS body")
       .write.format("nsq").option("nsqd", "10.0.0.2:4150").option("topic", "orders")
       .mode("append").save())

At least once: what is published cannot be taken back. A task that is retried, and a batch that is run again
after a crash, publish their rows again; so may a publish that nsqd did not answer. Only a stream with
``resume=partition`` leaves out, when a batch is run again, those partitions that it had published
completely; that is right only if the plan makes the same partitions every time: nothing random, and no clock.
The notes it takes are small files below the checkpoint, which must be where all executors see it.

Columns: ``body`` (binary or string); ``topic``, unless the option ``topic`` is given, which comes first;
``deferMs``, milliseconds until the message is delivered, null for now. Others are left alone.

Importing this loads no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from nsq.spark.sink.writers import BatchWriter, StreamWriter


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Raises ConfigError, in one line, for what cannot be published as asked."""
    from nsq.spark.sink import writers

    return writers.batch_writer(options, schema, overwrite)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Raises ConfigError, in one line, for what cannot be published as asked."""
    from nsq.spark.sink import writers

    return writers.stream_writer(options, schema, overwrite)
