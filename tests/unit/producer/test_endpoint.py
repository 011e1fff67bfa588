"""An endpoint as its connection's delegate: what it sends, and what it makes of the answers.

No thread and no socket: the connection and the pool only remember what they are told.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.connection.endpoint import Status
from nsq.errors import (
    BadBody,
    BadMessage,
    BadTopic,
    DialFailed,
    FinFailed,
    HandshakeFailed,
    MpubFailed,
    NsqError,
    PubFailed,
    PublishUncertain,
    ServerError,
    Unanswered,
    Unauthorized,
    WireError,
)
from nsq.producer.endpoint import _CHUNK
from nsq.producer.publishes import Publish, command_of
from nsq.producer.reports import ConnectionStats
from nsq.transport import MemoryTransport
from nsq.wire import commands
from nsq.wire.commands import NOP
from tests.fakes.nsqd import A
from tests.fakes.pool import LOST, QUOTA, READ_TIMEOUT, Scene, interleaved, nothing, ready

ENDED = PublishUncertain("no answer in time")


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def joining() -> Scene:
    """Publishes that wait together are joined."""
    return Scene(coalesce=True)


class TestEncode:
    @pytest.mark.parametrize(
        ("items", "coalesce", "written"),
        [
            ([], True, b""),
            ([NOP, NOP], True, NOP + NOP),
            ([b"a"], True, commands.pub("orders", b"a")),
            ([b"a", b"b"], True, commands.mpub("orders", [b"a", b"b"])),
            ([b"a", NOP, b"b", NOP], True, NOP + NOP + commands.mpub("orders", [b"a", b"b"])),
            ([b"a", b"b"], False, commands.pub("orders", b"a") + commands.pub("orders", b"b")),
        ],
        ids=["nothing", "heartbeats", "one publish", "two are joined", "around heartbeats", "none is joined"],
    )
    def test_what_is_written(self, items: list[bytes], coalesce: bool, written: bytes) -> None:
        scene = Scene(coalesce=coalesce)
        scene.fake.waiting.extend(item if item == NOP else Publish("orders", item) for item in items)
        assert scene.write() == written
        assert not scene.fake.waiting
        assert scene.endpoint.pending == len(items) - items.count(NOP)
        assert scene.write() == b""

    def test_a_cancelled_publish_is_not_sent(self, joining: Scene) -> None:
        made = joining.put(b"x" * _CHUNK, b"a", b"b", b"x", b"c")
        cancelled = [made[0], made[3]]
        assert all(each.claim.acquire(False) for each in cancelled)
        assert joining.write() == commands.mpub("orders", [b"a", b"b", b"c"])
        assert not any(each.claim.acquire(False) for each in made)
        joining.ok()
        assert joining.ended == [made[1], made[2], made[4]]
        assert joining.endpoint.pending == 0
        joining.put(b"d")[0].claim.acquire()
        assert joining.write() == b""
        joining.ok()
        assert joining.broken  # an answer to nothing

    @pytest.mark.parametrize(
        ("sizes", "taken"),
        [
            ([_CHUNK - 1, 1, 1], 2),
            ([_CHUNK, 1], 1),
            ([10 * _CHUNK, 1], 1),
            ([_CHUNK // 2] * 3, 2),
            ([1] * 3000, 3000),
        ],
    )
    def test_at_most_a_chunk_is_taken(self, joining: Scene, sizes: list[int], taken: int) -> None:
        made = joining.send(*[b"x" * size for size in sizes])
        assert list(joining.fake.waiting) == made[taken:]
        assert all(each.claim.acquire(False) for each in made[taken:])
        assert joining.endpoint.pending == len(made)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["publish", "publish", "deferred", "heartbeat", "cancelled"]),
                st.sampled_from(["orders", "users"]),
                st.sampled_from([1, 10, _CHUNK // 3, _CHUNK - 1, _CHUNK + 1]),
            ),
            max_size=25,
        ),
        st.booleans(),
    )
    def test_everything_goes_out_once_and_in_the_order_of_its_topic(
        self, items: list[tuple[str, str, int]], coalesce: bool
    ) -> None:
        scene = Scene(coalesce=coalesce)
        made: list[Publish] = []
        for number, (kind, topic, size) in enumerate(items):
            body = b"%d" % number + b"x" * size
            publish = Publish(topic, body)
            if kind == "deferred":
                publish = ready(topic, commands.dpub(topic, 1000, body))
            scene.fake.waiting.append(NOP if kind == "heartbeat" else publish)
            if kind == "cancelled":
                publish.claim.acquire()
            elif kind != "heartbeat":
                made.append(publish)
        written = b""
        while scene.fake.waiting:
            written += scene.write()
        assert written.count(NOP) == sum(kind == "heartbeat" for kind, *_ in items)
        assert written.replace(NOP, b"") == b"".join(map(command_of, scene.endpoint._sent))
        sent = [publish for batch in scene.endpoint._sent for publish in batch]
        for topic in ("orders", "users"):
            mine = [each for each in made if each.topic == topic]
            assert [each for each in sent if each.topic == topic] == mine


class TestOk:
    @pytest.mark.parametrize(
        ("oks", "stored"),
        [([1], 1), ([1, 1], 2), ([2], 2), ([3], 3), ([1, 2], 3), ([0], 0), ([0, 1], 1)],
    )
    def test_the_oldest_is_answered_first(self, scene: Scene, oks: list[int], stored: int) -> None:
        made = scene.send(b"a", b"b", b"c")
        for count in oks:
            scene.ok(count)
        assert scene.pool.ends == [(each, None) for each in made[:stored]]
        assert (scene.endpoint.published, scene.endpoint.pending) == (stored, 3 - stored)
        assert not scene.broken

    def test_one_ok_answers_a_whole_batch_and_messages_are_counted(self, joining: Scene) -> None:
        batch = ready("orders", commands.mpub("orders", [b"a", b"b"]), 2)
        joining.fake.waiting.append(batch)
        made = [batch, *joining.send(), *joining.send(b"c", b"d", b"e"), *joining.send(b"f")]
        joining.ok(2)
        assert joining.pool.ends == [(each, None) for each in made[:4]]
        assert joining.endpoint.published == 5

    @pytest.mark.parametrize("surplus", [1, 5])
    def test_an_ok_to_nothing_ends_the_connection(self, scene: Scene, surplus: int) -> None:
        made = scene.send(b"a", b"b")
        scene.ok(2 + surplus)
        assert scene.pool.ends == [(each, None) for each in made]
        assert scene.broken
        (late,) = scene.send(b"late")
        scene.ok()
        scene.lose(None)
        assert scene.pool.ends[2:] == [(late, late.error)]
        assert isinstance(late.error, PublishUncertain)
        assert "an OK to nothing" in str(late.error)

    def test_counters_are_up_to_date_when_a_caller_is_told(self, joining: Scene) -> None:
        """The pool looks once: when the connection has proven itself, or is overdue no more."""
        endpoint, seen = joining.endpoint, list[object]()
        joining.pool.on_settled = lambda: seen.append(
            (endpoint.published, endpoint.pending, endpoint.overdue, endpoint.state, joining.pool.wakes)
        )
        endpoint.backoff.failed(LOST, 0.0)
        joining.send(b"a", b"b")
        joining.ok()
        assert (endpoint.backoff.failures, endpoint.backoff.reason) == (0, None)
        joining.send(b"c")
        joining.ok()
        endpoint.overdue = True
        assert endpoint.state == "overdue"
        joining.send(b"d")
        joining.ok()
        assert seen == [(2, 0, False, "open", 1), (3, 0, False, "open", 1), (4, 0, False, "open", 2)]


#: How many were joined, retry_uncertain, the error: what each ends with (None: it is sent again), whether the
#: connection is closed, how many failures are counted. See test_publishes.py for the other errors.
REFUSALS: list[tuple[int, bool, ServerError, type[NsqError] | None, bool, int]] = [
    (1, True, BadTopic("E_BAD_TOPIC"), BadTopic, True, 1),
    (3, False, BadBody("E_BAD_BODY"), None, True, 0),
    (3, False, MpubFailed("E_MPUB_FAILED"), PublishUncertain, True, 3),
    (3, True, MpubFailed("E_MPUB_FAILED"), None, True, 3),
    (3, True, QUOTA, ServerError, False, 3),
    (1, False, FinFailed("E_FIN_FAILED"), FinFailed, False, 1),
    (0, False, PubFailed("E_PUB_FAILED"), None, True, 0),
    (0, False, QUOTA, None, False, 0),
]


class TestError:
    @pytest.mark.parametrize(("count", "retry_uncertain", "error", "kind", "closed", "failed"), REFUSALS)
    def test_what_becomes_of_a_batch_and_its_connection(
        self,
        count: int,
        retry_uncertain: bool,
        error: ServerError,
        kind: type[NsqError] | None,
        closed: bool,
        failed: int,
    ) -> None:
        scene = Scene(coalesce=True, retry_uncertain=retry_uncertain)
        made = scene.send(*[b"%d" % number for number in range(count)])
        scene.refuse(error)
        assert bool(scene.endpoint.open) is not closed
        scene.lose()
        assert scene.pool.errors == ([] if kind is None else [kind] * count)
        assert scene.pool.back == (made if kind is None else [])
        assert scene.broken is closed
        assert (scene.endpoint.failed, scene.endpoint.published, scene.endpoint.pending) == (failed, 0, 0)

    def test_the_messages_of_a_refused_batch_are_sent_one_by_one(self, joining: Scene) -> None:
        made = joining.send(b"a", b"b", b"c")
        made[1].end(ENDED)
        joining.refuse(BadMessage("E_BAD_MESSAGE"))
        joining.lose()
        assert joining.pool.back == [made[0], made[2]]
        assert joining.ended == [made[1]]  # not sent again; its room is given back
        assert [made[0].endpoint, made[2].endpoint] == [None, None]
        joining.fake.waiting.extend(joining.pool.back)
        assert joining.write() == commands.pub("orders", b"a") + commands.pub("orders", b"c")
        joining.refuse(BadMessage("E_BAD_MESSAGE: the first is too large"))
        assert joining.pool.ends[1:] == [(made[0], made[0].error)]
        assert isinstance(made[0].error, BadMessage)

    def test_after_a_batch_was_stored_in_part_nothing_is_joined_until_an_ok(self, joining: Scene) -> None:
        joining.send(b"a", b"b")
        joining.refuse(MpubFailed("E_MPUB_FAILED"))
        joining.lose()
        joining.reconnect()
        joining.put(b"c", b"d")
        assert joining.write() == commands.pub("orders", b"c") + commands.pub("orders", b"d")
        joining.ok()
        joining.put(b"e", b"f")
        assert joining.write() == commands.mpub("orders", [b"e", b"f"])

    def test_behind_a_fatal_error_nothing_was_executed(self, scene: Scene) -> None:
        first, second, third = scene.send(b"a", b"b", b"c")
        scene.ok()
        scene.refuse(BadTopic("E_BAD_TOPIC"))
        scene.lose()
        assert scene.ended == [first, second]
        assert scene.pool.back == [third]
        assert third.uncertain_at == ()
        assert scene.endpoint.failed == 1

    @pytest.mark.parametrize("error", [BadTopic("E_BAD_TOPIC"), QUOTA])
    def test_unless_the_server_goes_on(self, scene: Scene, error: ServerError) -> None:
        scene.send(b"a", b"b", b"c")
        scene.refuse(error)
        scene.ok()
        scene.lose()
        assert scene.pool.errors == [type(error), type(None), PublishUncertain]
        assert scene.pool.back == []


class TestSilence:
    @pytest.mark.parametrize(
        ("story", "closed"),
        [
            ("", False),
            ("send =", False),
            ("send >", True),
            ("send > ok >", False),
            ("send send < ok < ok", False),
            ("send send < ok =", False),
            ("send send < ok >", True),
            ("send < send <", True),
            ("> send =", False),
        ],
    )
    def test_heartbeats_do_not_stand_for_an_answer(self, scene: Scene, story: str, closed: bool) -> None:
        """``<``, ``=``, ``>``: less than read_timeout goes by, as much, or more. Then a heartbeat comes."""
        passes = {"<": 0.6 * READ_TIMEOUT, "=": READ_TIMEOUT, ">": READ_TIMEOUT + 0.001}
        made: list[Publish] = []
        for step in story.split():
            scene.clock.now += passes.get(step, 0.0)
            if step == "send":
                made += scene.send(b"body")
            elif step == "ok":
                scene.ok()
        scene.endpoint.on_heartbeat(scene.conn)
        assert scene.broken is closed
        scene.lose(None)
        if closed:
            assert isinstance(made[-1].error, PublishUncertain)
            assert isinstance(made[-1].error.__cause__, Unanswered)
            assert f"{A} sends heartbeats, but has not answered for 60 s" in str(made[-1].error)


@pytest.mark.parametrize(
    ("tell", "text"),
    [
        (lambda scene: scene.endpoint.on_messages(scene.conn, []), "sent messages to a connection"),
        (lambda scene: scene.endpoint.on_response(scene.conn, b"WHAT" * 99), "WHATWHAT"),
    ],
    ids=["a message", "an unknown response"],
)
def test_what_answers_no_publish_ends_the_connection(scene: Scene, tell: Any, text: str) -> None:
    made = scene.send(b"a", b"b", b"c")
    scene.ok()
    tell(scene)
    assert scene.broken
    scene.endpoint.on_response(scene.conn, b"the first reason counts")
    scene.ok()  # it may answer any of them
    scene.refuse(PubFailed("E_PUB_FAILED"))
    scene.lose(None)
    assert scene.pool.errors == [type(None), PublishUncertain, PublishUncertain]
    assert scene.pool.back == []
    assert isinstance(made[1].error, PublishUncertain)
    assert isinstance(made[1].error.__cause__, WireError)
    assert text in str(made[1].error)
    assert len(str(made[1].error)) < 300


class TestClose:
    @pytest.mark.parametrize("retry_uncertain", [False, True])
    def test_what_was_sent_is_uncertain_and_the_rest_is_taken_back(self, retry_uncertain: bool) -> None:
        scene = Scene(coalesce=True, retry_uncertain=retry_uncertain)
        sent, ended = scene.send(b"a", b"b"), scene.send(b"ended")
        ended[0].end(ENDED)
        waiting = scene.put(b"c", b"d")
        scene.fake.waiting.append(NOP)
        scene.lose()
        assert scene.ended == ([] if retry_uncertain else sent) + ended
        assert scene.pool.back == (sent if retry_uncertain else []) + waiting
        assert [each.uncertain_at for each in sent] == [(A,), (A,)]
        assert all(each.claim.acquire(False) for each in scene.pool.back)
        assert (scene.endpoint.pending, scene.endpoint.failed) == (0, 3)
        errors = [error for _, error in scene.pool.ends]
        assert all(type(error) is PublishUncertain and error.__cause__ is LOST for error in errors)
        assert len(set(map(id, errors))) == len(errors)  # callers do not share a traceback
        assert all(f"sent to {A} and not answered ({LOST})" in str(error) for error in errors)

    @pytest.mark.parametrize(
        ("oks", "cause", "pause", "reason", "failures"),
        [
            # It worked, and then: it was lost, fell silent, broke the protocol, could store no more,
            (1, LOST, 0.0, True, 0),
            (1, Unanswered("silent"), 0.0, True, 0),
            (1, WireError("garbage"), 4.0, True, 1),
            (1, PubFailed("E_PUB_FAILED"), 4.0, True, 1),
            # and a caller was at fault.
            (1, Unauthorized("E_UNAUTHORIZED"), 0.0, False, 0),
            # It never stored anything.
            (0, LOST, 4.0, True, 1),
            (0, WireError("garbage"), 4.0, True, 1),
            (0, PubFailed("E_PUB_FAILED"), 4.0, True, 1),
            (0, BadMessage("E_BAD_MESSAGE"), 0.0, False, 0),
            # It refused before it was asked.
            (None, Unauthorized("E_UNAUTHORIZED"), 4.0, True, 1),
            (None, QUOTA, 4.0, True, 1),
        ],
    )
    def test_when_it_is_dialed_again(
        self, scene: Scene, oks: int | None, cause: NsqError, pause: float, reason: bool, failures: int
    ) -> None:
        if oks is not None:
            scene.send(b"a", b"b")
            scene.ok(oks)
        if isinstance(cause, ServerError):
            scene.refuse(cause)
        scene.lose(cause)
        backoff = scene.endpoint.backoff
        assert backoff.due_at(urgent=False) - scene.clock.now == pause
        assert backoff.reason == (cause if reason else None)
        assert (backoff.failures, backoff.final) == (failures, False)

    @pytest.mark.parametrize("stopped", [False, True])
    def test_a_loss_is_logged_unless_it_was_wanted(
        self, scene: Scene, stopped: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        if stopped:
            scene.endpoint.stop()
        scene.lose(None)
        assert (f"is lost: the connection to {A} was closed" in caplog.text) is not stopped


class TestDial:
    @pytest.mark.parametrize(
        ("error", "final", "reason", "bug"),
        [
            (DialFailed("connection refused"), False, "connection refused", False),
            (HandshakeFailed("no TLS"), True, "no TLS", False),
            (Unauthorized("E_UNAUTHORIZED"), True, "E_UNAUTHORIZED", False),
            (RuntimeError("proxy misconfigured"), False, "RuntimeError('proxy misconfigured')", True),
        ],
    )
    def test_a_failure_is_noted_and_the_first_is_a_warning(
        self,
        scene: Scene,
        error: Exception,
        final: bool,
        reason: str,
        bug: bool,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        class Failing(MemoryTransport):
            def connect(self, address: str, *, timeout: float) -> Any:
                raise error

        endpoint = scene.endpoint
        scene.pool.transport = Failing()
        scene.clock.now = time.monotonic()  # the dial has a deadline
        with caplog.at_level(logging.INFO, "nsq.producer"):
            endpoint.dial()
            assert f"no connection to {A}, next try in 4.0 s" in caplog.text
            endpoint.dial()
        assert (endpoint.dialing, endpoint.backoff.final, endpoint.backoff.failures) == (False, final, 2)
        assert reason in endpoint.reason
        assert endpoint.reason.startswith(A)
        assert ("Traceback" in caplog.text) is bug
        levels = [record.levelno for record in caplog.records if "no connection" in record.message]
        assert levels == [logging.WARNING, logging.INFO]

    def test_nothing_of_the_connection_before_is_left(self, scene: Scene) -> None:
        scene.send(b"a", b"b")
        scene.ok()
        scene.refuse(BadTopic("E_BAD_TOPIC"))
        scene.endpoint.overdue = True
        scene.lose()
        scene.reconnect()
        assert not scene.endpoint.overdue
        scene.send(b"c")
        scene.lose()
        assert scene.pool.errors[-1] is PublishUncertain  # not "behind a refusal"
        assert scene.endpoint.backoff.pause > 0  # not "it worked"

    def test_one_that_is_stopped_while_it_dials_closes_its_connection(self, scene: Scene) -> None:
        scene.pool.transport = transport = MemoryTransport()
        scene.clock.now = time.monotonic()
        scene.endpoint.stop()
        scene.endpoint.dial()
        assert [peer.closed for peer in transport.peers] == [True]
        assert not scene.endpoint.dialing
        assert not scene.endpoint.open


class TestStop:
    @pytest.mark.parametrize(
        ("status", "closes"), [(Status.CONNECTED, [True]), (Status.DIALING, [False]), (None, [])]
    )
    def test_stop_lets_an_open_connection_write_and_ends_a_dial(
        self, scene: Scene, status: Status | None, closes: list[bool]
    ) -> None:
        if status is None:
            scene.endpoint.conn = None
        else:
            scene.endpoint.status = status
        scene.endpoint.stop()
        scene.endpoint.stop()
        assert scene.fake.closes == closes * 2
        assert not scene.endpoint.open
        scene.endpoint.cut_off()
        scene.endpoint.abandon()
        assert scene.fake.closes == closes * 2 + [False] * bool(closes)
        assert scene.fake.abandoned is bool(closes)


class TestKnown:
    @pytest.mark.parametrize(
        ("status", "closed", "overdue", "state"),
        [
            (Status.CONNECTED, False, False, "open"),
            (Status.CONNECTED, False, True, "overdue"),
            (Status.CONNECTED, True, False, "idle"),
            (Status.CONNECTED, True, True, "idle"),
            (Status.WAITING, True, True, "idle"),
            (Status.DIALING, False, False, "dialing"),
            (Status.DIALING, True, True, "dialing"),
        ],
    )
    def test_the_state(self, scene: Scene, status: Status, closed: bool, overdue: bool, state: str) -> None:
        scene.endpoint.status, scene.fake.closed, scene.endpoint.overdue = status, closed, overdue
        assert scene.endpoint.state == state
        assert bool(scene.endpoint.open) is (state in ("open", "overdue"))

    def test_stats(self, scene: Scene) -> None:
        scene.send(b"a", b"b", b"c", b"d")
        scene.put(b"waits")
        scene.ok(2)
        scene.refuse(QUOTA)
        assert scene.endpoint.stats() == ConnectionStats(
            address=A, state="open", pending=2, published=2, failed=1, reason=""
        )
        scene.lose()
        assert scene.endpoint.stats().failed == 2
        assert scene.endpoint.stats().reason == str(LOST)


class TestRaces:
    def test_what_happens_while_the_write_loop_takes(self, joining: Scene) -> None:
        """Before its claim a publish can be cancelled or be taken back; what is put goes out behind."""
        made = [Publish("orders", body) for body in (b"cancelled", b"sent", b"last", b"taken back")]
        late = Publish("orders", b"late")
        won: list[bool] = []

        def before_the_first_claim() -> None:
            won.append(made[0].claim.acquire(False))
            joining.pool.take_back(deque([waiting.pop()]))

        def later() -> None:
            won.append(made[1].claim.acquire(False))
            waiting.append(late)

        waiting = interleaved(deque, "popleft", behind=[before_the_first_claim, nothing, later])
        waiting.extend(made)
        assert joining.encode(waiting) == commands.mpub("orders", [b"sent", b"last", b"late"])
        assert won == [True, False]
        assert joining.pool.back == made[3:]
        assert made[3].claim.acquire(False)

    def test_what_a_late_write_loop_takes_is_not_answered_by_the_next_connection(self, scene: Scene) -> None:
        """It stood still for so long that the connection was closed without it."""
        late = Publish("orders", b"late")
        waiting = interleaved(deque, "popleft", behind=[lambda: (scene.lose(), scene.reconnect())])
        waiting.append(late)
        scene.encode(waiting)
        (after,) = scene.send(b"after")
        scene.ok()
        assert not late.done() or late.error is not None
        assert after.done()
