"""Finds nsqds through nsqlookupd, for consumers and producers alike."""

from __future__ import annotations

from nsq.discovery.lookups import Discovery

__all__ = ["Discovery"]
