"""A custom transport, which counts the bytes that go through another transport.

    python examples/custom_transport.py 127.0.0.1:4150

A transport has one method, ``connect``. A stream overrides only the methods that differ from the stream it
wraps. For a proxy do the same: connect to it, ask it for ``address``, and return the stream.
"""

from __future__ import annotations

import sys
from collections import Counter

from nsq.errors import NsqError
from nsq.transport import CHUNK, Stream, Transport, WrappedStream, default_transport
from nsq.wire import commands
from nsq.wire.identify import IdentifyRequest


class CountingTransport:
    """Dials with ``inner``. ``totals`` has the bytes of all connections, by direction and address."""

    def __init__(self, inner: Transport = default_transport) -> None:
        self._inner = inner
        self.totals: Counter[tuple[str, str]] = Counter()

    def connect(self, address: str, *, timeout: float) -> Stream:
        return CountingStream(self._inner.connect(address, timeout=timeout), self.totals)


class CountingStream(WrappedStream):
    """Counts in both directions. One thread reads and one writes, so each key has one writer per stream."""

    def __init__(self, stream: Stream, totals: Counter[tuple[str, str]]) -> None:
        super().__init__(stream)
        self._totals = totals

    def read(self, limit: int = CHUNK) -> bytes:
        data = super().read(limit)
        self._totals["received", self.peer] += len(data)
        return data

    def write(self, data: bytes, timeout: float) -> None:
        super().write(data, timeout)
        self._totals["sent", self.peer] += len(data)


def main(address: str) -> int:
    transport = CountingTransport()
    try:
        stream = transport.connect(address, timeout=5.0)
        try:
            stream.read_timeout = 5.0
            hello = IdentifyRequest(client_id="counting", feature_negotiation=True)
            stream.write(commands.MAGIC_V2 + commands.identify(hello.encode()), 5.0)
            print("nsqd says", stream.read()[8:].decode(errors="replace"))
        finally:
            stream.close()
    except NsqError as error:
        print(error, file=sys.stderr)
        return 1
    for (direction, peer), count in sorted(transport.totals.items()):
        print(f"{peer}: {count} bytes {direction}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT")
    sys.exit(main(sys.argv[1]))
