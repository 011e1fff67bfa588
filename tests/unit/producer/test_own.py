"""Blocking publishes that make round trips of their own, over nsqds in memory."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

import nsq
from nsq.config import Config
from nsq.errors import BadTopic, PublishUncertain
from nsq.producer.own import OwnConns
from nsq.producer.reports import CloseReport, Failed, FlushReport
from nsq.transport import MemoryTransport
from nsq.transport.base import WrappedStream
from nsq.wire import commands
from nsq.wire.frames import HEARTBEAT, OK, encode_error, encode_response
from tests.fakes.interrupts import Interrupted, interrupt
from tests.fakes.nsqd import A, PublishedTo, accept_publisher
from tests.fakes.threads import PATIENCE, in_thread

from .running import SOON, connected, eventually, producer, publishing, who_got


class Hooked(WrappedStream):
    """A stream of a user's own, whose calls a test can interrupt."""

    before_read: Callable[[], object] = staticmethod(lambda: None)
    before_look: Callable[[], object] = staticmethod(lambda: None)

    def read(self, limit: int = 65536) -> bytes:
        self.before_read()
        return super().read(limit)

    def readable(self) -> bool:  # type: ignore[override]
        self.before_look()
        return self.stream.readable()  # type: ignore[attr-defined, no-any-return]


class Opaque(WrappedStream):
    """A user's stream that cannot tell whether it is readable."""

    readable = None  # type: ignore[assignment]


class Wrapping:
    """A transport that wraps the streams of ``memory``."""

    def __init__(self, kind: type[WrappedStream] = Hooked) -> None:
        self.memory = MemoryTransport()
        self.streams: list[Any] = []
        self._kind = kind

    def connect(self, address: str, *, timeout: float) -> Any:
        self.streams.append(self._kind(self.memory.connect(address, timeout=timeout)))
        return self.streams[-1]


class Scene:
    """A producer with its shared connection ``loops``, and one idle connection of its own, ``own``."""

    def __init__(self, told: Mapping[str, bool] = {}, **options: Any) -> None:
        """``told``: nsqd's answer to IDENTIFY."""
        self._told = told
        self._numbers = itertools.count()
        self._accepted = 1
        self.transport = Wrapping()
        self.p = producer(self.transport, **{"publish_connections": 1, **options})
        self.loops = connected(self.p, self.transport.memory, **told)
        self.own = self.next_own()

    def next_own(self) -> PublishedTo:
        """Publish until that dials a connection, and then until a publish takes it."""
        memory = self.transport.memory
        self._accepted += 1
        while len(memory.peers) < self._accepted:
            self.publish(b"through the loops %d" % next(self._numbers), self.loops)
        own = accept_publisher(memory, **self._told)
        while self.publish(b"through either %d" % next(self._numbers), self.loops, own) is not own:
            pass
        return own

    def publish(self, body: bytes, *nsqds: PublishedTo) -> PublishedTo:
        """Publish, and return which of these connections it took."""
        published = publishing(self.p, body)
        nsqd = who_got(body, *nsqds)
        nsqd.ok()
        published.result(PATIENCE)
        return nsqd


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsq.producer.own._LOOK_INTERVAL", 0)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
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
    assert scene.p.stats().failed == 0


def test_a_publish_does_not_overtake_an_unanswered_publish_async(scene: Scene) -> None:
    future = scene.p.publish_async("orders", b"first")
    scene.loops.expect(b"first")
    published = publishing(scene.p, b"second")
    scene.loops.expect(b"second")
    scene.loops.ok()
    scene.loops.ok()
    future.result(PATIENCE)
    published.result(PATIENCE)
    assert scene.publish(b"third", scene.loops, scene.own) is scene.own


@pytest.mark.parametrize("news", ["heartbeat", "end"])
def test_a_connection_that_became_readable_while_idle_is_never_used(scene: Scene, news: str) -> None:
    scene.own.say(HEARTBEAT) if news == "heartbeat" else scene.own.peer.end()
    scene.publish(b"next", scene.loops)
    scene.own.peer.wait_closed()
    scene.own = scene.next_own()  # the next one is dialed at once


def test_one_look_serves_all_connections_that_were_used_a_moment_ago(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq.producer.own._FRESH", PATIENCE)
    monkeypatch.setattr("nsq.producer.own._LOOK_INTERVAL", PATIENCE)
    looks: list[None] = []
    scene.transport.streams[1].before_look = lambda: looks.append(None)
    scene.own.say(HEARTBEAT)
    published = publishing(scene.p, b"next")
    scene.own.expect(b"next")
    scene.own.peer.expect(commands.NOP)
    scene.own.ok()
    published.result(PATIENCE)
    assert not looks


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
    scene.publish(b"next", scene.loops)


@pytest.mark.parametrize("answer", ["E_PUB_FAILED topic is exiting", ""], ids=["refused", "unanswered"])
def test_what_may_be_sent_again_goes_through_the_loops(answer: str) -> None:
    scene = Scene(retry_uncertain=True)
    published = publishing(scene.p, b"again")
    scene.own.expect(b"again")
    scene.own.refuse(answer) if answer else scene.own.peer.end()
    scene.loops.answer(b"again")
    published.result(PATIENCE)
    scene.own.peer.wait_closed()
    scene.p.close()


def test_an_mpub_that_is_refused_because_nsqd_stops_goes_through_the_loops() -> None:
    scene = Scene({"exiting_not_stored": True})
    mpub = commands.mpub("orders", [b"a", b"b"])
    published = in_thread(partial(scene.p.multi_publish, "orders", [b"a", b"b"]))
    scene.own.peer.expect(mpub)
    scene.own.refuse("E_MPUB_FAILED MPUB failed exiting")
    scene.loops.peer.expect(mpub)
    scene.loops.ok()
    published.result(PATIENCE)
    scene.own.peer.wait_closed()
    scene.p.close()


def test_an_nsqd_that_drains_gets_no_connection_for_round_trips() -> None:
    transport = MemoryTransport()
    conns = OwnConns(A, Config(), time.monotonic, print)
    dialing = in_thread(partial(conns.dial, transport, None))
    peer = accept_publisher(transport, draining=True).peer
    assert dialing.result(PATIENCE) is None
    peer.wait_closed()


@pytest.mark.parametrize("stalled", [False, True], ids=["nsqd is silent", "nsqd does not take all of it"])
def test_a_round_trip_that_does_not_end_in_time_leaves_the_publish_uncertain(
    scene: Scene, stalled: bool
) -> None:
    if stalled:
        scene.own.peer.stall(after=1)
    published = in_thread(partial(scene.p.publish, "orders", b"late", timeout=0.01))
    with pytest.raises(PublishUncertain, match="no answer in time"):
        published.result(PATIENCE)  # less than write_timeout
    scene.own.peer.wait_closed()
    assert scene.p.stats().pending == 0


def test_heartbeats_do_not_prolong_the_wait_for_an_answer(scene: Scene) -> None:
    scene.transport.streams[1].before_read = lambda: scene.own.say(HEARTBEAT)
    published = publishing(scene.p, timeout=0.05)
    assert isinstance(published.exception(PATIENCE), PublishUncertain)


def test_a_heartbeat_does_not_begin_the_wait_anew(scene: Scene) -> None:
    waits: list[float] = []
    stream = scene.transport.streams[1]

    def before_read() -> None:
        waits.append(stream.stream.read_timeout)
        if len(waits) == 1:
            time.sleep(0.05)  # of the publish's time
            scene.own.say(HEARTBEAT)

    stream.before_read = before_read
    published = publishing(scene.p, b"waits", timeout=5.0)
    scene.own.expect(b"waits")
    scene.own.peer.expect(commands.NOP)
    scene.own.ok()
    published.result(PATIENCE)
    assert waits[1] < waits[0] - 0.04


def test_a_connection_is_asked_for_once_when_two_publishes_within_a_second_found_none() -> None:
    conns = OwnConns(A, Config(), time.monotonic, print)
    assert [conns.miss(now) for now in (0.0, 1.0, 2.0, 2.5, 2.6)] == [False, False, False, True, False]


def test_over_a_stream_that_cannot_tell_whether_it_is_readable_all_go_through_the_loops() -> None:
    transport = Wrapping(Opaque)
    with producer(transport, publish_connections=1) as p:
        nsqd = connected(p, transport.memory)

        def publish(number: int) -> None:
            published = publishing(p, b"%d" % number)
            nsqd.answer(b"%d" % number)
            published.result(PATIENCE)

        number = 0
        while len(transport.memory.peers) < 2:
            publish(number := number + 1)
        accept_publisher(transport.memory).peer.wait_closed()
        for number in range(3):
            publish(number)
    assert len(transport.memory.dials) == 2


def test_a_transport_that_raises_system_exit_costs_the_dial_and_not_the_thread() -> None:
    class Exiting:
        def connect(self, address: str, *, timeout: float) -> Any:
            raise SystemExit(1)

    assert OwnConns(A, Config(), time.monotonic, print).dial(Exiting(), None) is None


def test_idle_connections_end_when_the_shared_one_ends(scene: Scene) -> None:
    scene.loops.peer.end()
    scene.own.peer.wait_closed()


def test_an_idle_connection_is_closed_before_nsqd_misses_a_heartbeat() -> None:
    scene = Scene(heartbeat_interval=1.0)  # nsqd waits for two
    scene.own.peer.wait_closed()
    assert not scene.loops.peer.closed
    scene.p.close(0)


def test_a_publish_that_ends_after_its_nsqd_was_removed_is_counted(scene: Scene) -> None:
    before = scene.p.stats().published
    published = publishing(scene.p, b"next")
    scene.own.expect(b"next")
    scene.p.set_nsqds("nsqd2:4150")
    scene.loops.peer.end()
    eventually(lambda: [each.address for each in scene.p.stats().connections] == ["nsqd2:4150"])
    scene.own.ok()
    published.result(PATIENCE)
    assert scene.p.stats().published == before + 1


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("closing", [False, True])
def test_a_connection_that_an_interrupted_caller_has_lost_is_closed(closing: bool, removed: bool) -> None:
    scene = Scene(heartbeat_interval=1.0)
    scene.transport.streams[1].before_look = interrupt  # a signal comes when a publish has taken it
    with pytest.raises(Interrupted):
        scene.p.publish("orders", b"interrupted")
    if removed:
        scene.p.set_nsqds("nsqd2:4150")
        scene.loops.peer.end()
        eventually(lambda: [each.address for each in scene.p.stats().connections] == ["nsqd2:4150"])
    if closing:
        assert scene.p.close(PATIENCE)
    scene.own.peer.wait_closed()
    assert scene.own.peer.abandoned  # closed, even if its reader has not left it
    if not closing:
        if not removed:
            scene.next_own()
        scene.p.close(0)


def test_a_connection_whose_dial_outlives_the_close_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    dialed, go_on, dial = threading.Event(), threading.Event(), OwnConns.dial

    def dial_slowly(*args: Any) -> Any:
        conn = dial(*args)
        dialed.set()
        assert go_on.wait(PATIENCE)
        return conn

    monkeypatch.setattr(OwnConns, "dial", dial_slowly)
    transport = MemoryTransport()
    p = producer(transport, publish_connections=1)
    nsqd = connected(p, transport)
    while len(transport.peers) < 2:  # one of them has another connection dialed
        published = publishing(p, b"body")
        nsqd.answer(b"body")
        published.result(PATIENCE)
    own = accept_publisher(transport)
    assert dialed.wait(PATIENCE)
    assert not p.close(0.1)
    eventually(lambda: all(each.name != "nsq-producer" for each in threading.enumerate()))
    go_on.set()
    own.peer.wait_closed()


def test_close_waits_for_round_trips_and_closes_their_connections(scene: Scene) -> None:
    published = publishing(scene.p, b"last")
    scene.own.expect(b"last")
    closed = in_thread(scene.p.close)
    eventually(lambda: "closed" in repr(scene.p))
    scene.own.ok()
    published.result(PATIENCE)
    assert closed.result(PATIENCE) == CloseReport(clean=True)
    scene.own.peer.wait_closed()
    scene.loops.peer.wait_closed()


def test_close_waits_for_what_was_refused_and_goes_through_the_loops(scene: Scene) -> None:
    published = publishing(scene.p, b"last")
    scene.own.expect(b"last")
    closed = in_thread(scene.p.close)
    eventually(lambda: "closed" in repr(scene.p))
    scene.own.refuse("E_PUB_FAILED topic is exiting")
    scene.loops.answer(b"last")
    published.result(PATIENCE)
    assert closed.result(PATIENCE) == CloseReport(clean=True)


def test_flush_waits_for_round_trips(scene: Scene) -> None:
    published = publishing(scene.p, b"body")
    scene.own.expect(b"body")
    assert scene.p.flush(0.01) == FlushReport(clean=False, unanswered=1)
    assert scene.p.stats().pending == 1
    flushed = in_thread(scene.p.flush)
    scene.own.ok()
    assert flushed.result(PATIENCE)
    published.result(PATIENCE)
    assert scene.p.stats().pending == 0


def test_an_interrupted_round_trip_is_reported_as_uncertain_and_is_no_refusal_of_nsqds() -> None:
    failed: list[Failed] = []
    scene = Scene(on_failed=failed.append)
    scene.transport.streams[1].before_read = interrupt
    with pytest.raises(Interrupted):
        scene.p.publish("orders", b"interrupted")
    scene.own.peer.wait_closed()
    assert scene.p.flush(PATIENCE)
    assert [type(each.error) for each in failed] == [PublishUncertain]
    assert (scene.p.stats().pending, scene.p.stats().failed) == (0, 0)
    scene.p.close(0)


def test_close_cuts_off_a_round_trip_at_its_deadline(scene: Scene) -> None:
    published = publishing(scene.p, b"last")
    scene.own.expect(b"last")
    report = scene.p.close(SOON)
    assert (report.clean, report.unanswered) == (False, 1)
    with pytest.raises(PublishUncertain, match="closed"):
        published.result(PATIENCE)
    scene.own.peer.wait_closed()


def test_close_and_flush_do_not_wait_for_the_round_trip_that_they_interrupt(scene: Scene) -> None:
    """As a signal handler that runs in the middle of one."""
    reports: list[Any] = []
    scene.transport.streams[1].before_read = lambda: reports.extend([scene.p.flush(), scene.p.close()])
    published = publishing(scene.p, b"last")
    scene.own.answer(b"last")
    published.result(PATIENCE)
    assert [bool(report) for report in reports] == [True, True]
    scene.own.peer.wait_closed()
