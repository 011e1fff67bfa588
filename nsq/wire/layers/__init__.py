"""Layers between the V2 protocol and the socket: TLS, deflate, snappy, and a stack of them.

A layer turns bytes into bytes. It knows no socket, clock, thread or logger and must import none of them. Only
TLS owns a lock: OpenSSL forbids two threads in one SSL object, and a connection reads and writes at once. The
thread-based client and the asyncio daemons share this module.

The contract, for a single layer and for a :class:`Stack` alike:

* ``unwrap`` hands out a bounded amount per call, whatever the input expands to, and keeps the rest. While
  ``more`` is true, call ``unwrap(b"")`` before feeding new bytes; its answer may be empty even then.
* Only the side that sends may call ``wrap``, ``pending`` and ``close``: bytes must reach the wire in the
  order these return them. A reader that finds ``has_pending`` set wakes the sender. Were it to send the bytes
  itself, it could overtake, or be overtaken by, a record the sender has already sealed.
* What cannot be decoded raises :class:`~nsq.errors.LayerError`, and from then on ``wrap`` and ``unwrap``
  always do. ``pending`` and ``close`` still answer: they hold the TLS alert that tells the peer why.
"""

from __future__ import annotations

from nsq.wire.layers.base import MAX_OUTPUT, Layer, Stack
from nsq.wire.layers.compression import Deflate, Snappy
from nsq.wire.layers.tls import Tls, TlsContext

__all__ = ["MAX_OUTPUT", "Deflate", "Layer", "Snappy", "Stack", "Tls", "TlsContext"]
