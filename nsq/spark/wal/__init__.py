"""The write-ahead log between nsqd and Spark: ``open_wal("/data/wal")``. See ``store.py``, ``directory.py``.

Importing this package does not load pyarrow; opening a log does.
"""

from __future__ import annotations

from nsq.spark.wal.names import ReceiverFolder, Segment, Subject, new_receiver
from nsq.spark.wal.store import Claim, Log, Wal, open_wal

__all__ = ["Claim", "Log", "ReceiverFolder", "Segment", "Subject", "Wal", "new_receiver", "open_wal"]
