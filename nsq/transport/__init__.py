"""Moves bytes to and from an nsqd; here you plug in another way of doing it.

A Transport has one method, ``connect``, which returns a Stream; ``base`` defines their contract.
``default_transport``, a SocketTransport, is TCP for ``host:port`` and a Unix socket for ``unix:/path``. Wrap
it, subclass WrappedStream, or write both from scratch; test with MemoryTransport.
"""

from __future__ import annotations

from .base import CHUNK, Stream, Transport, WrappedStream
from .dialing import SocketTransport, default_transport
from .layered import LayeredStream
from .memory import MemoryPeer, MemoryStream, MemoryTransport
from .sockets import SocketStream

__all__ = [
    "Transport",
    "Stream",
    "CHUNK",
    "default_transport",
    "SocketTransport",
    "SocketStream",
    "WrappedStream",
    "LayeredStream",
    "MemoryTransport",
    "MemoryPeer",
    "MemoryStream",
]
