"""One connection to one nsqd: what it is (``Session``), what waits to be sent (``Outbox``), who is told of
what happens (``ConnDelegate``), and the pair of threads that drives them (``Conn``)."""

from __future__ import annotations

from nsq.connection.conn import Conn
from nsq.connection.delegates import ConnDelegate

__all__ = ["Conn", "ConnDelegate"]
