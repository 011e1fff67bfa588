"""Blocking publishes that make round trips of their own, over nsqds in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import nsq
from nsq.errors import BadTopic, PublishFailed, PublishUncertain
from nsq.transport import MemoryTransport
from nsq.transport.base import WrappedStream
from nsq.wire import commands
from nsq.wire.frames import HEARTBEAT, OK, encode_error, encode_response
from tests.fakes.nsqd import PublishedTo, accept_publisher
from tests.fakes.threads import PATIENCE

from .running import connected, on_pools_thread, producer, publishing


class Scene:
    """A producer with its shared connection ``loops``, and one idle connection of its own, ``own``."""

    def __init__(self, transport: Any, memory: MemoryTransport, **options: Any) -> None:
        self.transport = memory
        self.p = producer(transport, **{"publish_connections": 1, **options})
        self.loops = connected(self.p, memory)
        self.missed()
        self.own = self.accept()

    def missed(self) -> None:
        """Two publishes in a row that find no idle connection."""
        for body in (b"1", b"2"):
            published = publishing(self.p, body)
            self.loops.answer(body)
            published.result(PATIENCE)

    def accept(self) -> PublishedTo:
        own = accept_publisher(self.transport)
        self.wait_for_idle(1)
        return own

    def wait_for_idle(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self.conns._idle) != count:
            assert time.monotonic() < deadline
            on_pools_thread(self.p)

    @property
    def conns(self) -> Any:
        (endpoint,) = self.p._pool.endpoints.all
        return endpoint.own


@pytest.fixture
def scene() -> Iterator[Scene]:
    memory = MemoryTransport()
    scene = Scene(memory, memory)
    yield scene
    scene.p.close(0)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param([encode_response(OK)], id="ok"),
        pytest.param([encode_response(OK)[:3], encode_response(OK)[3:]], id="in pieces"),
        pytest.param([encode_response(HEARTBEAT) + encode_response(OK)], id="heartbeat first"),
        pytest.param([encode_response(HEARTBEAT), encode_response(OK)], id="heartbeat, then ok"),
        pytest.param([encode_response(OK) + encode_response(HEARTBEAT)], id="heartbeat behind"),
    ],
)
def test_a_publish_takes_the_idle_connection_and_puts_it_back(scene: Scene, reply: list[bytes]) -> None:
    for body in (b"one", b"two"):
        published = publishing(scene.p, body)
        scene.own.expect(body)
        for each in reply:
            scene.own.peer.send(each)
        published.result(PATIENCE)
        if any(HEARTBEAT in each for each in reply):
            scene.own.peer.expect(commands.NOP)
    assert scene.p.stats().published == 5
    assert scene.conns._idle


def test_every_kind_of_publish_makes_a_round_trip(scene: Scene) -> None:
    kinds = {
        commands.dpub("orders", 2000, b"b"): lambda: scene.p.publish("orders", b"b", defer=2.0),
        commands.mpub("orders", [b"b", b"c"]): lambda: scene.p.multi_publish("orders", [b"b", b"c"]),
    }
    for command, call in kinds.items():
        thread = threading.Thread(target=call)
        thread.start()
        scene.own.peer.expect(command)
        scene.own.ok()
        thread.join(PATIENCE)
    assert scene.p.stats().published == 3 + 3


def test_a_publish_does_not_overtake_an_unanswered_publish_async(scene: Scene) -> None:
    future = scene.p.publish_async("orders", b"first")
    scene.loops.expect(b"first")
    published = publishing(scene.p, b"second")
    scene.loops.expect(b"second")
    scene.loops.ok()
    scene.loops.ok()
    future.result(PATIENCE)
    published.result(PATIENCE)
    published = publishing(scene.p, b"third")
    scene.own.answer(b"third")
    published.result(PATIENCE)


@pytest.mark.parametrize("news", ["heartbeat", "end"])
def test_a_connection_that_became_readable_while_idle_is_never_used(scene: Scene, news: str) -> None:
    scene.own.say(HEARTBEAT) if news == "heartbeat" else scene.own.peer.end()
    published = publishing(scene.p, b"next")
    scene.loops.answer(b"next")
    published.result(PATIENCE)
    scene.own.peer.wait_closed()
    scene.missed()
    scene.own = scene.accept()  # the next one is dialed at once
    published = publishing(scene.p, b"last")
    scene.own.answer(b"last")
    published.result(PATIENCE)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (encode_response(b"CLOSE_WAIT"), PublishUncertain),
        (encode_response(OK) * 2, PublishUncertain),
        (b"HTTP/1.1 400 Bad Request", PublishUncertain),
        (b"", PublishUncertain),  # it hangs up
        (encode_error(b"E_BAD_TOPIC no"), BadTopic),
    ],
    ids=["another reply", "two", "another protocol", "end", "refused"],
)
def test_after_anything_odd_the_connection_is_closed(
    scene: Scene, reply: bytes, error: type[nsq.NsqError]
) -> None:
    published = publishing(scene.p, b"odd")
    scene.own.expect(b"odd")
    scene.own.peer.send(reply) if reply else scene.own.peer.end()
    with pytest.raises(error):
        published.result(PATIENCE)
    scene.own.peer.wait_closed()
    assert scene.p.stats().failed == 1
    published = publishing(scene.p, b"next")  # through the loops
    scene.loops.answer(b"next")
    published.result(PATIENCE)


def test_a_publish_that_nsqd_could_not_store_goes_through_the_loops(scene: Scene) -> None:
    published = publishing(scene.p, b"again")
    scene.own.expect(b"again")
    scene.own.refuse("E_PUB_FAILED topic is exiting")
    scene.loops.answer(b"again")
    published.result(PATIENCE)
    scene.own.peer.wait_closed()


def test_silence_until_the_deadline_leaves_the_publish_uncertain(scene: Scene) -> None:
    with pytest.raises(PublishUncertain, match="no answer in time"):
        scene.p.publish("orders", b"silence", timeout=0.01)
    scene.own.peer.wait_closed()
    assert scene.p.stats().pending == 0


def test_with_retry_uncertain_an_unanswered_publish_is_sent_again() -> None:
    memory = MemoryTransport()
    scene = Scene(memory, memory, retry_uncertain=True)
    published = publishing(scene.p, b"twice")
    scene.own.expect(b"twice")
    scene.own.peer.end()
    scene.loops.answer(b"twice")
    published.result(PATIENCE)
    scene.p.close()


def test_one_publish_now_and_then_dials_no_connection() -> None:
    memory = MemoryTransport()
    with producer(memory, publish_connections=1) as p:
        nsqd = connected(p, memory)
        (endpoint,) = p._pool.endpoints.all
        for number in range(3):
            endpoint.own._missed_at -= 2.0  # as if that time had passed
            published = publishing(p, b"%d" % number)
            nsqd.answer(b"%d" % number)
            published.result(PATIENCE)
        on_pools_thread(p)
        assert len(memory.dials) == 1


class Opaque(WrappedStream):
    """A user's stream that cannot tell whether it is readable."""

    readable = None


class OpaqueTransport:
    def __init__(self, memory: MemoryTransport) -> None:
        self._memory = memory

    def connect(self, address: str, *, timeout: float) -> Opaque:
        return Opaque(self._memory.connect(address, timeout=timeout))


def test_over_a_stream_that_cannot_tell_whether_it_is_readable_all_go_through_the_loops() -> None:
    memory = MemoryTransport()
    with producer(OpaqueTransport(memory), publish_connections=1) as p:  # type: ignore[arg-type]
        nsqd = connected(p, memory)
        for number in range(4):
            published = publishing(p, b"%d" % number)
            nsqd.answer(b"%d" % number)
            published.result(PATIENCE)
            if number == 1:
                accept_publisher(memory).peer.wait_closed()
        on_pools_thread(p)
        assert len(memory.dials) == 2


def test_idle_connections_end_when_the_shared_one_ends(scene: Scene) -> None:
    scene.loops.peer.end()
    scene.own.peer.wait_closed()


def test_an_idle_connection_is_closed_before_nsqd_misses_a_heartbeat(scene: Scene) -> None:
    (conn,) = scene.conns._idle
    conn.used_at -= 31.0  # heartbeat_interval is 30 s; nsqd waits for two
    scene.p._pool.owner.ask(scene.conns.sweep)
    scene.own.peer.wait_closed()
    assert scene.p.stats().published == 3


def test_a_connection_that_an_interrupted_caller_has_lost_is_closed(scene: Scene) -> None:
    (conn,) = scene.conns._idle
    scene.conns._idle.clear()
    for _ in range(2):
        assert not scene.own.peer.closed
        scene.conns.sweep()
    assert scene.own.peer.closed
    assert conn not in scene.conns.everyone


def test_close_waits_for_round_trips_and_closes_their_connections(scene: Scene) -> None:
    published = publishing(scene.p, b"last")
    scene.own.expect(b"last")
    thread = threading.Thread(target=scene.p.close)
    thread.start()
    while not scene.p._pool.closed:
        time.sleep(0)
    scene.own.ok()
    published.result(PATIENCE)
    thread.join(PATIENCE)
    scene.own.peer.wait_closed()
    scene.loops.peer.wait_closed()


def test_close_cuts_off_a_round_trip_at_its_deadline(scene: Scene) -> None:
    published = publishing(scene.p, b"last")
    scene.own.expect(b"last")
    report = scene.p.close(0)
    assert (report.clean, report.unanswered) == (False, 1)
    with pytest.raises(PublishUncertain, match="closed"):
        published.result(PATIENCE)
    scene.own.peer.wait_closed()


def test_close_and_flush_do_not_wait_for_the_round_trip_that_they_interrupt() -> None:
    """As a signal handler that runs in the middle of one."""
    memory = MemoryTransport()
    scene = Scene(memory, memory)
    reports: list[Any] = []

    class Interrupting(WrappedStream):
        def read(self, limit: int = 65536) -> bytes:
            reports.extend([scene.p.flush(PATIENCE), scene.p.close(PATIENCE)])
            return super().read(limit)

    (conn,) = scene.conns._idle
    conn._stream = Interrupting(conn._stream)
    published = publishing(scene.p, b"last")
    scene.own.answer(b"last")
    published.result(PATIENCE)
    assert [bool(report) for report in reports] == [True, True]
    scene.own.peer.wait_closed()


def test_close_also_closes_a_connection_that_an_interrupted_publish_has_left(scene: Scene) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    (own,) = scene.conns.everyone
    own.readable = interrupt  # a signal comes when the publish has taken the connection
    with pytest.raises(KeyboardInterrupt):
        scene.p.publish("orders", b"interrupted")
    assert scene.p.close(PATIENCE)
    assert scene.own.peer.abandoned  # closed, even if its reader has not left it


def test_a_publish_that_is_given_up_before_its_round_trip_is_not_sent(scene: Scene) -> None:
    pool = scene.p._pool

    def given_up() -> bool:
        for publish in pool.pending.copy():
            pool.give_up(publish, "the producer was closed")
        return False

    (own,) = scene.conns.everyone
    own.readable = given_up  # called when the publish has taken the connection
    with pytest.raises(PublishFailed, match="the producer was closed"):
        scene.p.publish("orders", b"given up")
    own.readable = lambda: False
    published = publishing(scene.p, b"next")
    scene.own.answer(b"next")
    published.result(PATIENCE)
