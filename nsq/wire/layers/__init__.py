"""Layers between the V2 protocol and the socket: TLS, deflate, snappy, and a stack of them.

A layer turns bytes into bytes. It uses no socket, clock, thread or logger. Only TLS has a lock: OpenSSL
forbids two threads in one SSL object, and a connection reads and writes at once. The thread-based client and
the asyncio daemons share this package.

The rules for using a layer or a :class:`Stack`:

* One ``unwrap`` returns at most ``max_output`` bytes, however much its input expands to, and keeps the rest.
  While ``more`` is true, call ``unwrap(b"")`` before passing new bytes; it may still return nothing.
* Only the thread that sends calls ``wrap``, ``pending`` and ``close``, and sends what they return in that
  order. When a reader finds ``has_pending`` true, it wakes the sender. If the reader sent the bytes itself,
  they could overtake a TLS record that the sender has already made.
* Input that cannot be decoded raises :class:`~nsq.errors.LayerError`, and so does every later ``wrap`` and
  ``unwrap``. ``pending`` and ``close`` still work: they return the TLS alert that tells the peer why.
* After ``close``, call ``wrap`` no more. Only TLS refuses it. ``unwrap`` goes on.
"""

from __future__ import annotations

from nsq.wire.layers.base import MAX_OUTPUT, Layer, Stack
from nsq.wire.layers.compression import Deflate, Snappy
from nsq.wire.layers.tls import Tls, TlsContext

__all__ = ["MAX_OUTPUT", "Deflate", "Layer", "Snappy", "Stack", "Tls", "TlsContext"]
