"""The write-ahead log between nsqd and Spark: ``open_wal("/data/wal")``. See ``log.py``.

Importing this package does not load pyarrow; opening a log does.
"""

from __future__ import annotations

from nsq.spark.wal.names import ReceiverState, Segment, Subject, new_receiver
from nsq.spark.wal.store import open_wal

__all__ = ["ReceiverState", "Segment", "Subject", "new_receiver", "open_wal"]
