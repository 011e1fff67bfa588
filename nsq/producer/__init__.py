"""Publishing: ``Producer``, and what it reports."""

from __future__ import annotations

from nsq.producer.producer import Producer
from nsq.producer.reports import Acknowledged, ConnectionStats, ProducerHealth, ProducerStats

__all__ = ["Acknowledged", "ConnectionStats", "Producer", "ProducerHealth", "ProducerStats"]
