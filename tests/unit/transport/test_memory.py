from __future__ import annotations

import pytest

from nsq.errors import ConnectionLost, DialFailed, Unanswered
from nsq.transport import MemoryPeer, MemoryStream, MemoryTransport, Stream, WrappedStream
from tests.fakes.threads import Running

LONG = 30.0


def connected(transport: MemoryTransport | None = None) -> tuple[MemoryStream, MemoryPeer]:
    transport = transport or MemoryTransport()
    return transport.connect("nsqd:4150", timeout=1.0), transport.accept()


def test_reads_are_as_large_as_they_are_asked_to_be_and_as_the_chunks_of_the_transport() -> None:
    transport = MemoryTransport(chunk_size=2)
    for _ in range(2):
        stream, peer = connected(transport)
        peer.send(b"abcd")
        assert (stream.read(1), stream.read(), stream.read()) == (b"a", b"bc", b"d")
    peer.send(b"abcdef")
    peer.chunk_size = 4
    assert (stream.read(), peer.unread) == (b"abcd", b"ef")


def test_a_read_has_a_timeout_and_reading_goes_on_after_it() -> None:
    stream, peer = connected()
    stream.read_timeout = 0.0
    with pytest.raises(Unanswered, match=r"nsqd:4150: nothing was received within 0 s"):
        stream.read()
    peer.send(b"late")
    assert stream.read() == b"late"


def test_the_end_comes_after_what_was_sent_and_writing_goes_on() -> None:
    stream, peer = connected()
    peer.send(b"last")
    peer.end()
    assert (stream.read(), stream.read(), stream.read()) == (b"last", b"", b"")
    stream.write(b"still here", 1.0)
    peer.expect(b"still here")


def test_a_failure_comes_after_what_was_sent_and_ends_writing() -> None:
    stream, peer = connected()
    error = ConnectionLost("reset")
    peer.send(b"last")
    peer.fail(error)
    assert stream.read() == b"last"
    with pytest.raises(ConnectionLost) as caught:
        stream.read()
    assert caught.value is error
    with pytest.raises(ConnectionLost):
        stream.write(b"x", 1.0)
    assert peer.received == b""


@pytest.mark.parametrize("end", ["wake", "close", "abandon"])
def test_a_blocked_read_is_ended(end: str) -> None:
    stream, peer = connected()
    reading = Running(stream.read)
    getattr(stream, end)()
    assert reading.result() == b""
    peer.send(b"too late")
    assert stream.read() == b""
    assert peer.closed == (end != "wake")
    assert peer.abandoned == (end == "abandon")


def test_writing_goes_on_after_a_wake_and_not_after_a_close() -> None:
    stream, peer = connected()
    stream.wake()
    stream.write(b"x", 1.0)
    stream.close()
    stream.close()
    with pytest.raises(ConnectionLost, match="closed on this side"):
        stream.write(b"y", 1.0)
    assert peer.received == b"x"
    peer.wait_closed()


def test_a_peer_that_does_not_read_runs_writes_into_their_deadline() -> None:
    stream, peer = connected()
    peer.stall(after=3)
    with pytest.raises(Unanswered, match=r"2 of 5 bytes were not taken within 0 s"):
        stream.write(b"abcde", 0.0)
    assert peer.received == b"abc"


@pytest.mark.parametrize("end", ["close", "fail"])
def test_a_stalled_write_ends_with_the_connection(end: str) -> None:
    stream, peer = connected()
    peer.stall()
    writing = Running(lambda: stream.write(b"abc", LONG))
    if end == "close":
        stream.close()
    else:
        peer.fail(ConnectionLost("reset"))
    with pytest.raises(ConnectionLost):
        writing.result()


def test_expectations_follow_one_another() -> None:
    stream, peer = connected()
    stream.write(b"  V2NOP\n", 1.0)
    peer.expect(b"  V2")
    peer.expect(b"NOP\n")
    with pytest.raises(AssertionError, match="expected b'NOP"):
        peer.expect(b"NOP\n", 0.0)


def test_an_expectation_waits_only_while_it_can_come_true() -> None:
    stream, peer = connected()
    stream.write(b"NO", 1.0)
    waiting = Running(lambda: peer.expect(b"NOP\n", LONG))
    stream.write(b"P\n", 1.0)
    waiting.result()
    stream.write(b"CLS\n", 1.0)
    with pytest.raises(AssertionError, match="received b'CLS"):
        peer.expect(b"NOP\nNOP\n", LONG)


def test_any_condition_on_the_bytes_can_be_waited_for() -> None:
    stream, peer = connected()
    waiting = Running(lambda: peer.wait_until(lambda received: received.count(b"FIN") == 2, LONG))
    stream.write(b"FIN 1\n", 1.0)
    stream.write(b"FIN 2\n", 1.0)
    assert waiting.result() == b"FIN 1\nFIN 2\n"
    with pytest.raises(AssertionError, match="in vain"):
        peer.wait_until(lambda received: b"REQ" in received, 0.0)


def test_waiting_for_a_close_that_does_not_come_fails() -> None:
    _, peer = connected()
    with pytest.raises(AssertionError, match="did not close nsqd:4150"):
        peer.wait_closed(0.0)


def test_connections_are_accepted_in_their_order() -> None:
    transport = MemoryTransport()
    accepting = Running(lambda: [transport.accept(LONG).address, transport.accept(LONG).address])
    transport.connect("a:1", timeout=1.0)
    transport.connect("b:2", timeout=1.0)
    assert accepting.result() == ["a:1", "b:2"]
    assert [peer.address for peer in transport.peers] == transport.dials == ["a:1", "b:2"]
    with pytest.raises(AssertionError, match="no client connected"):
        transport.accept(0.0)


def test_dials_are_refused_on_demand() -> None:
    transport = MemoryTransport()
    transport.refuse("a:1", "no route to host")
    with pytest.raises(DialFailed, match="cannot connect to a:1: no route to host"):
        transport.connect("a:1", timeout=1.0)
    transport.connect("b:2", timeout=1.0)
    transport.refuse()
    with pytest.raises(DialFailed, match="cannot connect to b:2: connection refused"):
        transport.connect("b:2", timeout=1.0)
    transport.admit("a:1")
    with pytest.raises(DialFailed):
        transport.connect("a:1", timeout=1.0)
    transport.admit()
    transport.connect("a:1", timeout=1.0)
    assert transport.dials == ["a:1", "b:2", "b:2", "a:1", "a:1"]
    assert [peer.address for peer in transport.peers] == ["b:2", "a:1"]


def test_dials_can_be_waited_for() -> None:
    transport = MemoryTransport()
    waiting = Running(lambda: transport.wait_for_dials(2, LONG))
    transport.connect("a:1", timeout=1.0)
    transport.connect("a:1", timeout=1.0)
    waiting.result()
    with pytest.raises(AssertionError, match="not 3 dials"):
        transport.wait_for_dials(3, 0.0)


def test_a_script_answers_every_connection() -> None:
    transport = MemoryTransport((b"  V2", b""), (b"PING", b"pong"), (b"PING", b"gnop"))
    for _ in range(2):
        stream, peer = connected(transport)
        stream.write(b"  V2PI", 1.0)
        assert peer.unread == b""
        stream.write(b"NG", 1.0)
        assert stream.read() == b"pong"
        stream.write(b"PINGand anything", 1.0)
        assert stream.read() == b"gnop"
        stream.write(b"goes", 1.0)
        assert peer.unread == b""


def test_bytes_that_are_not_in_the_script_break_the_connection_and_are_named() -> None:
    stream, _ = connected(MemoryTransport((b"PING", b"pong")))
    stream.write(b"PUNG", 1.0)
    with pytest.raises(ConnectionLost, match=r"the script has b'PING' next, but b'PUNG' was written"):
        stream.read()
    with pytest.raises(ConnectionLost):
        stream.write(b"PING", 1.0)


def test_everything_reaches_the_stream_inside_a_wrapped_one() -> None:
    inner, peer = connected()
    stream = WrappedStream(inner)
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


def test_an_overridden_method_of_a_wrapped_stream_is_used() -> None:
    class Shouting(WrappedStream):
        def write(self, data: bytes, timeout: float) -> None:
            super().write(data.upper(), timeout)

    inner, peer = connected()
    Shouting(inner).write(b"pub", 1.0)
    assert peer.received == b"PUB"
