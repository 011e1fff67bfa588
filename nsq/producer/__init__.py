"""Publishing: ``Producer``, and what it reports."""

from __future__ import annotations

from nsq.producer.producer import Producer
from nsq.producer.reports import (
    Acknowledged,
    CloseReport,
    ConnectionStats,
    Failed,
    FlushReport,
    ProducerHealth,
    ProducerStats,
)

__all__ = [
    "Acknowledged",
    "CloseReport",
    "ConnectionStats",
    "Failed",
    "FlushReport",
    "Producer",
    "ProducerHealth",
    "ProducerStats",
]
