"""Moves bytes to and from an nsqd; here you plug in another way of doing it.

A Transport has one method, ``connect``, which returns a Stream; ``base`` defines their contract.
``default_transport``, a SocketTransport, is TCP for ``host:port`` and a Unix socket for ``unix:/path``. Wrap
it, subclass WrappedStream, or write both from scratch; test with MemoryTransport.

The names are loaded at first use: the daemons need only ``addresses``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_MODULES = {
    "base": ("Transport", "Stream", "CHUNK", "WrappedStream"),
    "dialing": ("default_transport", "SocketTransport"),
    "layered": ("LayeredStream",),
    "memory": ("MemoryTransport", "MemoryPeer", "MemoryStream"),
    "sockets": ("SocketStream",),
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
