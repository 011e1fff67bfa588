from __future__ import annotations

import ssl
import threading
from collections.abc import Callable

import pytest
import trustme

from nsq.errors import ConnectionLost, LayerError, Unanswered
from nsq.transport import CHUNK, LayeredStream, MemoryPeer, MemoryTransport, WrappedStream
from nsq.wire.layers import Deflate, Layer, Snappy, Tls

HOST = "nsqd.example"
LONG = 30.0


def connected(*layers: Layer, chunk_size: int | None = None) -> tuple[LayeredStream, MemoryPeer]:
    transport = MemoryTransport(chunk_size=chunk_size)
    stream = LayeredStream(transport.connect("nsqd:4150", timeout=1.0))
    for layer in layers:
        stream.push(layer)
    return stream, transport.accept()


class Secured:
    """A client stream under TLS, and the server's half of the same connection in the test's hand."""

    def __init__(
        self, *, chunk_size: int | None = None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
    ) -> None:
        authority = trustme.CA()
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(HOST).configure_cert(server)
        server.maximum_version = newest
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(client)
        self.server = Tls(server, server_side=True, server_hostname=None)
        self.client = Tls(client, server_side=False, server_hostname=HOST)
        self.stream, self.peer = connected(chunk_size=chunk_size)
        self.stream.push(self.client)
        self.greeting = b""
        self._seen = 0

    def shaken(self) -> Secured:
        server = threading.Thread(target=self._serve, daemon=True)
        server.start()
        try:
            self.stream.handshake(LONG)
        finally:
            server.join(LONG)
        return self

    def _serve(self) -> None:
        while not self.server.handshake_done:
            self.peer.wait_until(lambda received: len(received) > self._seen, LONG)
            self.take()
            greeting = self.server.wrap(self.greeting) if self.server.handshake_done else b""
            self.peer.send(greeting or self.server.pending())

    def take(self) -> bytes:
        """The client's new bytes, decoded."""
        new = self.peer.received[self._seen :]
        self._seen += len(new)
        return self.server.unwrap(new)


def test_a_layered_stream_without_layers_passes_bytes_unchanged() -> None:
    stream, peer = connected()
    peer.send(b"abc")
    peer.end()
    stream.write(b"def", 1.0)
    assert (stream.read(2), stream.read(), stream.read()) == (b"ab", b"c", b"")
    assert peer.received == b"def"
    assert not stream.has_pending
    stream.flush_pending(1.0)
    assert peer.writes == [b"def"]
    assert not stream.truncated


@pytest.mark.parametrize("make", [Deflate, Snappy])
def test_a_conversation_can_be_compressed(make: Callable[[], Layer]) -> None:
    stream, peer = connected(make(), chunk_size=3)
    server = make()
    stream.write(b"to the server", 1.0)
    assert server.unwrap(peer.received) == b"to the server"
    peer.send(server.wrap(b"to the client"))
    peer.end()
    got = b""
    while chunk := stream.read():
        got += chunk
    assert got == b"to the client"
    assert not stream.truncated


def test_bytes_that_a_layer_keeps_are_returned_before_more_is_read() -> None:
    stream, peer = connected(Deflate(max_output=100))
    peer.send(Deflate().wrap(bytes(1000)))
    sizes = [len(stream.read()) for _ in range(10)]
    assert sizes == [100] * 10
    assert peer.unread == b""


def test_a_layer_can_be_pushed_while_bytes_for_it_have_come_already() -> None:
    stream, peer = connected()
    server = Snappy()
    peer.send(b"OK" + server.wrap(b"first"))
    received = stream.read()
    stream.push(Snappy(), received[2:])
    peer.send(server.wrap(b"second"))
    assert (stream.read(), stream.read()) == (b"first", b"second")


def test_bytes_for_a_pushed_layer_may_be_incomplete() -> None:
    wire = Snappy().wrap(b"first")
    stream, peer = connected()
    stream.push(Snappy(), wire[:12])
    peer.send(wire[12:])
    assert stream.read() == b"first"


def test_bytes_that_cannot_be_decoded_are_an_error() -> None:
    stream, peer = connected(Snappy())
    peer.send(b"this is not snappy at all")
    with pytest.raises(LayerError, match="snappy"):
        stream.read()


@pytest.mark.parametrize("chunk_size", [None, 7])
def test_a_conversation_can_use_tls(chunk_size: int | None) -> None:
    tls = Secured(chunk_size=chunk_size).shaken()
    assert tls.client.handshake_done
    assert tls.stream.read_timeout is None
    tls.stream.write(b"IDENTIFY", 1.0)
    assert tls.take() == b"IDENTIFY"
    tls.peer.send(tls.server.wrap(b"OK"))
    assert tls.stream.read() == b"OK"


def test_bytes_that_follow_the_servers_handshake_are_not_lost() -> None:
    """In TLS 1.2 the server ends the handshake; its first bytes may come with that."""
    tls = Secured(newest=ssl.TLSVersion.TLSv1_2)
    tls.greeting = b"OK"
    tls.shaken()
    assert tls.stream.read() == b"OK"


def test_a_woken_reader_returns_in_spite_of_early_bytes() -> None:
    stream, _ = connected()
    stream.push(Snappy(), Snappy().wrap(b"early"))
    stream.wake()
    assert stream.read() == b""


def test_a_handshake_whose_time_is_up_is_named_and_leaves_the_read_timeout() -> None:
    tls = Secured()
    tls.stream.read_timeout = 60.0
    with pytest.raises(Unanswered, match="the TLS handshake was not done within 0 s"):
        tls.stream.handshake(0.0)
    assert tls.stream.read_timeout == 60.0


def test_a_peer_that_hangs_up_on_the_handshake_is_named() -> None:
    tls = Secured()
    tls.peer.end()
    with pytest.raises(ConnectionLost, match="nsqd:4150: the connection ended during the TLS handshake"):
        tls.stream.handshake(LONG)


def test_a_failed_handshake_tells_the_peer_why() -> None:
    tls = Secured()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(HOST).configure_cert(context)  # an authority the client does not know
    tls.server = Tls(context, server_side=True, server_hostname=None)
    tls.stream.flush_pending(1.0)
    tls.take()
    tls.peer.send(tls.server.pending())
    with pytest.raises(LayerError, match="certificate verify failed"):
        tls.stream.handshake(LONG)
    with pytest.raises(LayerError, match=r"(?i)alert unknown ca"):
        tls.take()


def test_an_end_after_a_goodbye_is_an_end() -> None:
    tls = Secured().shaken()
    tls.peer.send(tls.server.wrap(b"last") + tls.server.close())
    assert (tls.stream.read(), tls.stream.read()) == (b"last", b"")
    # The peer has said its last: no read waits for the stream inside to end as well.
    assert tls.stream.read() == b""
    assert not tls.stream.truncated


def test_an_end_without_a_goodbye_is_truncated() -> None:
    tls = Secured().shaken()
    tls.peer.send(tls.server.wrap(b"last"))
    tls.peer.end()
    assert (tls.stream.read(), tls.stream.read()) == (b"last", b"")
    assert tls.stream.truncated


@pytest.mark.parametrize("end", ["wake", "close", "abandon"])
def test_an_end_of_our_own_is_not_truncated(end: str) -> None:
    tls = Secured().shaken()
    tls.peer.send(tls.server.wrap(b"unread"))
    getattr(tls.stream, end)()
    assert tls.stream.read() == b""
    assert not tls.stream.truncated


class WokenWhileItWaits(WrappedStream):
    """A stream whose reader is woken in the middle of each read."""

    outer: LayeredStream

    def read(self, limit: int = CHUNK) -> bytes:
        self.outer.wake()
        return super().read(limit)


def test_a_read_that_is_ended_by_us_while_it_waits_is_not_truncated() -> None:
    tls = Secured().shaken()
    inner = WokenWhileItWaits(tls.stream.stream)
    stream = inner.outer = LayeredStream(inner)
    stream.stack = tls.stream.stack
    assert stream.read() == b""
    assert not stream.truncated


def test_withheld_bytes_do_not_keep_a_woken_reader() -> None:
    stream, peer = connected(Deflate(max_output=100))
    peer.send(Deflate().wrap(bytes(1000)))
    stream.read()
    stream.wake()
    assert stream.read() == b""


class Talkative(Snappy):
    """Wants something sent whenever it has read something, as TLS does when keys change."""

    has_pending = False

    def unwrap(self, data: bytes) -> bytes:
        self.has_pending = True
        return super().unwrap(data)

    def pending(self) -> bytes:
        self.has_pending = False
        return b"<key update>"


def test_the_reader_announces_what_a_layer_wants_sent_and_leaves_it_to_the_writer() -> None:
    stream, peer = connected(Talkative())
    calls: list[bool] = []
    stream.on_pending = lambda: calls.append(stream.has_pending)
    peer.send(Snappy().wrap(b"data"))
    assert stream.read() == b"data"
    assert calls == [True]
    assert peer.received == b""
    stream.flush_pending(1.0)
    assert peer.received == b"<key update>"
    assert not stream.has_pending


def test_reading_goes_on_without_a_callback_for_pending_bytes() -> None:
    stream, peer = connected(Talkative())
    peer.send(Snappy().wrap(b"data"))
    assert stream.read() == b"data"
    assert stream.has_pending


def test_a_close_says_goodbye_only_if_asked() -> None:
    tls = Secured().shaken()
    before = tls.peer.received
    tls.stream.close()
    assert tls.peer.received == before
    assert tls.peer.closed


def test_a_farewell_is_the_last_thing_sent() -> None:
    tls = Secured().shaken()
    tls.stream.close(farewell=1.0)
    assert tls.take() == b""
    assert tls.server.peer_closed
    assert tls.peer.closed
    tls.stream.close(farewell=1.0)


def test_a_farewell_does_not_wait_for_a_dead_peer() -> None:
    tls = Secured().shaken()
    tls.peer.stall()
    tls.stream.close(farewell=0.0)
    assert tls.peer.closed


def test_close_sends_nothing_after_half_a_record() -> None:
    tls = Secured().shaken()
    tls.peer.stall(after=5)
    with pytest.raises(Unanswered):
        tls.stream.write(b"PUB", 0.0)
    tls.peer.resume()
    before = tls.peer.received
    tls.stream.close(farewell=1.0)
    assert tls.peer.received == before
    assert tls.peer.closed


class Locked(Snappy):
    """A lock as a forked child finds it when a thread of the parent held it."""

    def close(self) -> bytes:
        raise AssertionError("this would wait for ever")


def test_an_abandoned_stream_uses_no_layer() -> None:
    stream, peer = connected(Locked())
    stream.abandon()
    stream.close(farewell=1.0)
    assert stream.read() == b""
    assert peer.abandoned
