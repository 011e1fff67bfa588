"""Servers that are not nsqds, are broken, or are malicious.

Each causes a clear error with its address and the cause, and costs bounded memory and time. Other connections
are not affected, and a good server at the same address is used later.
"""

from __future__ import annotations

import gc
import resource
import socket
import struct
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import snappy

from nsq import Consumer, ConsumerHooks, NsqError
from nsq.errors import FrameError, Unanswered
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from nsq.wire.frames import HEARTBEAT, OK, encode_error, encode_message, encode_response
from tests.fakes.bad_server import BadServer, Peer, Script
from tests.fakes.nsqlookupd import ScriptedLookupd

from .consuming import (
    PATIENCE,
    Recorder,
    create,
    expect_drained,
    log_of,
    make_consumer,
    publish,
    running,
    until,
)

MIB = 1 << 20
QUICK = {"reconnect_initial": 0.05, "reconnect_max": 0.2}


# What bad servers do.


def message(number: int, body: bytes = b"unwanted") -> bytes:
    return encode_message(time.time_ns(), 1, b"%016x" % number, body)


def says(data: bytes) -> Script:
    """Whatever it is asked."""
    return lambda peer: peer.send(data)


def hangs_up(peer: Peer) -> None:
    peer.read_identify()
    peer.close()


def resets(peer: Peer) -> None:
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def answers_identify_with(data: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.read_identify()
        peer.send(data)

    return script


def sends_after_the_handshake(data: bytes, *, then_close: bool = False) -> Script:
    def script(peer: Peer) -> None:
        peer.subscribe()
        peer.send(data)
        if then_close:
            peer.close()

    return script


def claims_tls_and_goes_on_in_plain_text(peer: Peer) -> None:
    peer.grant(tls_v1=True)
    peer.send(encode_response(OK))


def compresses(name: str, data: bytes) -> Script:
    """Grants the compression, then says OK and ``data`` in it."""

    def script(peer: Peer) -> None:
        peer.grant(**{name: True})
        peer.send(data)

    return script


def deflated(*parts: bytes) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return b"".join(map(deflater.compress, parts)) + deflater.flush(zlib.Z_SYNC_FLUSH)


def snapped(*parts: bytes) -> bytes:
    framer = snappy.StreamCompressor()
    return b"".join(map(framer.compress, parts))


HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request"
TWO_GIB = struct.pack(">ii", 2**31 - 1, 2)

#: Name, what the server does, options of the consumer, words of the error. tests/unit/connection has more.
BEFORE: list[tuple[str, Script, dict[str, Any], list[str]]] = [
    ("http", says(HTTP), {}, ["HTTP", "not nsqd's TCP port"]),
    ("ssh", says(b"SSH-2.0-OpenSSH_9.2\r\n"), {}, ["above"]),
    ("hangs up", hangs_up, {}, ["closed the connection during the handshake"]),
    ("resets", resets, {}, ["the connection is lost"]),
    ("half an answer", answers_identify_with(b"\0\0\0"), {"handshake_timeout": 0.3}, ["in time"]),
    ("JSON, no object", answers_identify_with(encode_response(b"[1]")), {}, ["IDENTIFY", "not an object"]),
    ("a negative RDY", answers_identify_with(encode_response(b'{"max_rdy_count": -5}')), {}, ["of -5"]),
    ("an error", answers_identify_with(encode_error(b"E_INVALID go away")), {}, ["E_INVALID go away"]),
    ("plain TLS", claims_tls_and_goes_on_in_plain_text, {"tls": True}, ["TLS"]),
    ("deflate garbage", compresses("deflate", b"\xff" * 100), {"deflate": True}, ["deflate"]),
    ("snappy garbage", compresses("snappy", b"\xff" * 100), {"snappy": True}, ["snappy"]),
]


class Causes(ConsumerHooks):
    def __init__(self) -> None:
        self.causes: dict[str, NsqError | None] = {}

    def disconnected(self, nsqd_address: str, cause: NsqError | None) -> None:
        self.causes.setdefault(nsqd_address, cause)


@pytest.mark.parametrize(
    ("script", "options", "words"), [case[1:] for case in BEFORE], ids=[case[0] for case in BEFORE]
)
def test_a_bad_handshake_is_an_error(script: Script, options: dict[str, Any], words: list[str]) -> None:
    seen = Recorder()
    with BadServer(script) as bad, log_of() as log:
        consumer = make_consumer(bad.address, **QUICK, **options).add_handler(seen).start()
        try:
            log.wait_for("WARNING", bad.address, *words)
            until("health names it", lambda: all(word in str(consumer.health().discovery) for word in words))
            assert bad.address in str(consumer.health().discovery)
            assert not consumer.health().ok
            until("it is tried again", lambda: bad.connections >= 2)
        finally:
            assert consumer.stop(PATIENCE).clean
    assert seen.messages == []
    assert not [line for line in log.lines if "bug of ours" in line]


AFTER: list[tuple[str, Script, type[NsqError], list[str]]] = [
    (
        "2 GiB",
        sends_after_the_handshake(TWO_GIB + bytes(100_000)),
        FrameError,
        ["2147483647 bytes", "1048576"],
    ),
    ("noise", sends_after_the_handshake(bytes(range(255, 0, -1)) * 400), FrameError, ["does not speak V2"]),
    (
        "mid-frame end",
        sends_after_the_handshake(message(1)[:30], then_close=True),
        NsqError,
        ["closed the connection"],
    ),
]


@pytest.mark.parametrize(
    ("script", "kind", "words"), [case[1:] for case in AFTER], ids=[case[0] for case in AFTER]
)
def test_a_server_that_goes_bad(
    nsqd_factory: Factory[Nsqd], script: Script, kind: type[NsqError], words: list[str]
) -> None:
    """The good one beside it does not notice; and a good one in its place is found."""
    good = nsqd_factory()
    create(good)
    seen, hooks = Recorder(), Causes()
    with log_of() as log, BadServer(script) as bad:
        consumer = make_consumer(
            [good], threads=4, max_in_flight=4, hooks=hooks, max_frame_size=MIB, **QUICK
        ).add_handler(seen)
        with running(consumer):
            publish(good, [b"before"])
            seen.wait_for(1)
            (connection,) = consumer.health().connections
            # Alone, so that its window is known.
            consumer.pause()
            consumer.add_nsqd(bad.address)
            consumer.resume()
            log.wait_for("WARNING", "connection lost", bad.address, *words)
            until("the hook", lambda: bad.address in hooks.causes)
            assert isinstance(hooks.causes[bad.address], kind)
            until("health names it", lambda: all(word in str(consumer.health().discovery) for word in words))
            publish(good, [b"after"])
            until("the good one goes on", lambda: b"after" in seen.bodies)
            healthy = {each.nsqd_address: each for each in consumer.health().connections}
            assert healthy[good.tcp_address].seconds_connected > connection.seconds_connected
            bad.close()
            better = nsqd_factory(tcp_address=bad.address)
            create(better)
            publish(better, [b"recovered"])
            until("recovered", lambda: b"recovered" in seen.bodies)
            for nsqd in (good, better):
                expect_drained(nsqd)
    assert not [line for line in log.lines if "bug of ours" in line]


# Resources.


def grown(call: Callable[[], None]) -> int:
    """The maximum growth of Python's memory inside the block."""
    gc.collect()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def lose_connection(script: Script, *words: str, **options: Any) -> Recorder:
    """Have a consumer meet the server once, and lose it for this reason."""
    seen = Recorder()
    with log_of() as log, BadServer(script) as bad:
        consumer = make_consumer(bad.address, reconnect_initial=60.0, reconnect_max=60.0, **options)
        consumer.add_handler(seen).start()
        try:
            log.wait_for("WARNING", bad.address, *words, timeout=100.0)
        finally:
            assert consumer.stop(PATIENCE).clean
    return seen


def test_a_server_that_floods_is_cut_off_with_little_harm() -> None:
    flood = b"".join(message(number, bytes(1000)) for number in range(50_000))

    def go() -> None:
        seen = lose_connection(
            sends_after_the_handshake(flood), "RDY was never above 2", max_in_flight=2, max_attempts=0
        )
        # What was complete in the first chunk is not even handed out.
        assert len(seen.messages) <= 4

    assert grown(go) < 8 * MIB


BOMBS: dict[str, tuple[Callable[..., bytes], list[bytes], str]] = {
    # Less than a megabyte that inflates to 256 of them.
    "deflate": (deflated, [bytes(MIB)] * 256, "no frame can have"),
    # Blocks that say they are small and are not, and a frame that never ends.
    "snappy": (snapped, [struct.pack(">ii", 2**30, 2), *[bytes(MIB)] * 64], "1073741824 bytes"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_cut_off_with_little_harm(name: str) -> None:
    compressed, parts, said = BOMBS[name]
    bomb = compressed(encode_response(OK), encode_response(OK), *parts)
    assert grown(lambda: lose_connection(compresses(name, bomb), said, **{name: True}) and None) < 16 * MIB


def test_heartbeats_without_end_do_not_pile_up() -> None:
    """A server that sends them as fast as it can and takes no answer is given up after write_timeout."""

    def script(peer: Peer) -> None:
        peer.subscribe()
        beats = encode_response(HEARTBEAT) * 3000
        while True:
            peer.send(beats)

    # tracemalloc would make this take seconds; see no_lasting_growth.
    lose_connection(script, "were not taken within", write_timeout=0.3)


# Time.


def silent_after_the_handshake(peer: Peer) -> None:
    peer.subscribe()


def test_a_server_that_falls_silent_is_left() -> None:
    hooks = Causes()
    with log_of() as log, BadServer(silent_after_the_handshake) as bad:
        consumer = make_consumer(bad.address, heartbeat_interval=1.0, read_timeout=1.1, hooks=hooks, **QUICK)
        with running(consumer.add_handler(Recorder())):
            log.wait_for("WARNING", "connection lost", bad.address, "silent for 1.1 s")
            until("the hook", lambda: hooks.causes)
            assert isinstance(hooks.causes[bad.address], Unanswered)
            until("it is tried again", lambda: bad.connections >= 2)


@pytest.mark.parametrize("kind", ["nsqd", "nsqlookupd"])
def test_an_nsqd_that_hangs_up_at_once_is_dialed_less_and_less_often(kind: str) -> None:
    with BadServer(hangs_up) as bad, ScriptedLookupd(bad.address) as lookupd:
        where = {"nsqd": bad.address, "nsqlookupd": lookupd.address}[kind]
        options = {"reconnect_initial": 0.1, "reconnect_max": 30.0, "lookupd_poll_interval": 0.05}
        consumer = Consumer("orders", "billing", **{kind: where}, **options).add_handler(Recorder()).start()
        until("dialed", lambda: bad.connections)
        threading.Event().wait(1.5)
        assert consumer.stop().clean
        assert bad.connections <= 12


@pytest.fixture(autouse=True)
def no_lasting_growth() -> Iterator[None]:
    """The process as a whole stays small, whatever tracemalloc does not see."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024
