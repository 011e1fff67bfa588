from __future__ import annotations

from nsq.transport import MemoryTransport, Stream, WrappedStream


def test_everything_reaches_the_stream_inside() -> None:
    transport = MemoryTransport()
    stream = WrappedStream(transport.connect("nsqd:4150", timeout=1.0))
    peer = transport.accept()
    assert isinstance(stream, Stream)
    assert stream.peer == "nsqd:4150"
    stream.read_timeout = 2.5
    assert stream.read_timeout == stream.stream.read_timeout == 2.5
    peer.send(b"abc")
    assert (stream.read(2), stream.read()) == (b"ab", b"c")
    stream.write(b"def", 1.0)
    assert peer.received == b"def"
    stream.wake()
    assert peer.woken
    assert not peer.closed
    stream.close()
    assert peer.closed
    assert not peer.abandoned
    stream.abandon()
    assert peer.abandoned


def test_an_overridden_method_is_used() -> None:
    class Shouting(WrappedStream):
        def write(self, data: bytes, timeout: float) -> None:
            super().write(data.upper(), timeout)

    transport = MemoryTransport()
    Shouting(transport.connect("nsqd:4150", timeout=1.0)).write(b"pub", 1.0)
    assert transport.accept().received == b"PUB"
