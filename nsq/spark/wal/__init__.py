"""The write-ahead log between nsqd and Spark: ``open_wal("/data/wal")``, and what it can do is ``store.Wal``.

Importing this loads no pyarrow; opening a log does.
"""

from __future__ import annotations

from nsq.spark.wal.names import new_receiver
from nsq.spark.wal.places import open_wal
from nsq.spark.wal.store import Claim, Log, ReceiverFolder, Segment, Wal
from nsq.spark.wal.subject import Subject

__all__ = ["Claim", "Log", "ReceiverFolder", "Segment", "Subject", "Wal", "new_receiver", "open_wal"]
