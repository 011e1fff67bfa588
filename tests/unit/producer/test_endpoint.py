"""An endpoint as its connection's delegate: what it sends, and what it makes of the answers.

No thread and no socket: the connection and the pool only remember what they are told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.config import Config
from nsq.errors import (
    BadBody,
    BadMessage,
    BadTopic,
    ConnectionLost,
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
    server_error,
)
from nsq.producer import endpoint as endpoint_module
from nsq.producer.endpoint import _CHUNK, Endpoint
from nsq.producer.publishes import Publish, command_of
from nsq.producer.reports import ConnectionStats
from nsq.transport import MemoryTransport
from nsq.wire import commands
from nsq.wire.commands import NOP

from .fakes import A, Clock, FakePool, bodies, connect, ready, write

PATIENCE = 60.0  # read_timeout
LOST = ConnectionLost(f"{A} closed the connection")
QUOTA = server_error(b"E_QUOTA later")  # a code that nsqd does not have


class Scene:
    """An endpoint, connected, and what is around it."""

    def __init__(self, **options: Any) -> None:
        self.clock = Clock()
        self.pool = FakePool()
        pool: Any = self.pool
        options = {"reconnect_initial": 4.0, "read_timeout": PATIENCE, **options}
        self.endpoint = Endpoint(pool, Config(**options), self.clock, lambda: 1.0)
        self.endpoint.address = A
        self.fake = connect(self.endpoint)
        self.conn: Any = self.fake

    def put(self, *bodies: bytes, topic: str = "orders") -> list[Publish]:
        made = [Publish(topic, body) for body in bodies]
        self.fake.waiting.extend(made)
        return made

    def send(self, *bodies: bytes) -> list[Publish]:
        """Written together."""
        made = self.put(*bodies)
        write(self.endpoint)
        return made

    def ok(self, count: int = 1) -> None:
        self.endpoint.on_ok(self.conn, count)

    def refuse(self, error: ServerError) -> None:
        self.endpoint.on_error(self.conn, error)

    def lose(self, cause: NsqError | None = LOST) -> None:
        self.endpoint.on_close(self.conn, cause)

    def reconnect(self) -> None:
        """As ``_dial`` begins, and a connection that is open."""
        transport: Any = MemoryTransport()
        transport.refuse()
        self.pool.transport = transport
        self.endpoint._dial()
        self.fake = connect(self.endpoint)
        self.conn = self.fake

    @property
    def broken(self) -> bool:
        """Whether the endpoint has closed the connection."""
        return self.fake.closes == [False]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def alone() -> Scene:
    """Every publish is a command of its own."""
    return Scene(coalesce=False)


class TestEncode:
    @pytest.mark.parametrize(
        ("items", "written"),
        [
            ([], b""),
            ([NOP], NOP),
            ([NOP, NOP], NOP + NOP),
            ([b"a"], commands.pub("orders", b"a")),
            ([b"a", b"b"], commands.mpub("orders", [b"a", b"b"])),
        ],
        ids=["nothing", "an answer to a heartbeat", "two of them", "one publish", "two that are joined"],
    )
    def test_what_is_written(self, scene: Scene, items: list[bytes], written: bytes) -> None:
        scene.fake.waiting.extend(item if item == NOP else Publish("orders", item) for item in items)
        assert write(scene.endpoint) == written
        assert not scene.fake.waiting
        assert write(scene.endpoint) == b""

    def test_answers_to_heartbeats_among_publishes_split_no_batch(self, scene: Scene) -> None:
        scene.put(b"a")
        scene.fake.waiting.append(NOP)
        scene.put(b"b")
        scene.fake.waiting.append(NOP)
        written = write(scene.endpoint)
        assert written.count(NOP) == 2
        assert written.replace(NOP, b"") == commands.mpub("orders", [b"a", b"b"])
        assert scene.endpoint.pending == 2

    def test_what_is_taken_is_claimed_and_what_was_cancelled_is_not_sent(self, scene: Scene) -> None:
        made = scene.put(b"a", b"b", b"c")
        assert made[1].claim.acquire(False)
        assert write(scene.endpoint) == commands.mpub("orders", [b"a", b"c"])
        assert not any(each.claim.acquire(False) for each in made)
        assert scene.endpoint.pending == 2

    def test_if_all_were_cancelled_nothing_is_sent(self, scene: Scene) -> None:
        for each in scene.put(b"a", b"b"):
            each.claim.acquire()
        assert write(scene.endpoint) == b""
        assert scene.endpoint.pending == 0
        scene.ok()
        assert scene.broken

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
    def test_at_most_a_chunk_and_what_is_left_can_be_cancelled(
        self, scene: Scene, sizes: list[int], taken: int
    ) -> None:
        made = scene.put(*[b"x" * size for size in sizes])
        write(scene.endpoint)
        assert list(scene.fake.waiting) == made[taken:]
        assert all(each.claim.acquire(False) for each in made[taken:])
        assert scene.endpoint.pending == len(made)

    def test_what_was_cancelled_costs_nothing_of_the_chunk(self, scene: Scene) -> None:
        big, small = scene.put(b"x" * _CHUNK, b"small")
        big.claim.acquire()
        assert write(scene.endpoint) == commands.pub("orders", b"small")
        assert not small.claim.acquire(False)

    def test_nothing_is_joined_unless_asked_to(self) -> None:
        scene = alone()
        scene.put(b"a", b"b")
        assert write(scene.endpoint) == commands.pub("orders", b"a") + commands.pub("orders", b"b")

    def test_batches_are_answered_in_the_order_of_the_wire(self, scene: Scene) -> None:
        """Which is not that of the publishes: joined ones of another topic go first."""
        a1, b1, a2 = *scene.put(b"a1"), *scene.put(b"b1", topic="users"), *scene.put(b"a2")
        deferred = ready("users", commands.dpub("users", 1000, b"later"))
        scene.fake.waiting.append(deferred)
        batches = [[a1, a2], [b1], [deferred]]
        assert write(scene.endpoint) == b"".join(map(command_of, batches))
        for batch in batches:
            scene.pool.ends.clear()
            scene.ok()
            assert [publish for publish, _ in scene.pool.ends] == batch

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
            if kind == "heartbeat":
                scene.fake.waiting.append(NOP)
                continue
            body = b"%d" % number + b"x" * size
            publish = Publish(topic, body)
            if kind == "deferred":
                publish = ready(topic, commands.dpub(topic, 1000, body))
            scene.fake.waiting.append(publish)
            if kind == "cancelled":
                publish.claim.acquire()
            else:
                made.append(publish)
        written = b""
        while scene.fake.waiting:
            written += write(scene.endpoint)
        batches = list(scene.endpoint._sent)
        assert written.count(NOP) == sum(kind == "heartbeat" for kind, *_ in items)
        assert written.replace(NOP, b"") == b"".join(map(command_of, batches))
        sent = [publish for batch in batches for publish in batch]
        for topic in ("orders", "users"):
            assert [each for each in sent if each.topic == topic] == [
                each for each in made if each.topic == topic
            ]


class TestOk:
    @pytest.mark.parametrize(
        ("oks", "stored"),
        [([1], 1), ([1, 1], 2), ([2], 2), ([3], 3), ([1, 2], 3), ([0], 0), ([0, 1], 1)],
    )
    def test_answers_the_oldest_first(self, oks: list[int], stored: int) -> None:
        scene = alone()
        made = scene.send(b"a", b"b", b"c")
        for count in oks:
            scene.ok(count)
        assert scene.pool.ends == [(each, None) for each in made[:stored]]
        assert scene.endpoint.published == stored
        assert scene.endpoint.pending == 3 - stored
        assert not scene.broken

    def test_one_answers_all_that_were_joined(self, scene: Scene) -> None:
        made = [*scene.send(b"a", b"b", b"c"), *scene.send(b"d")]
        scene.ok()
        assert scene.pool.ends == [(each, None) for each in made[:3]]

    def test_messages_are_counted_and_not_publishes(self, scene: Scene) -> None:
        scene.fake.waiting.append(ready("orders", commands.mpub("orders", [b"a", b"b"]), 2))
        write(scene.endpoint)
        scene.ok()
        assert scene.endpoint.published == 2

    @pytest.mark.parametrize("surplus", [1, 5])
    def test_to_nothing_ends_the_connection_and_takes_nothing_back(self, surplus: int) -> None:
        scene = alone()
        made = scene.send(b"a", b"b")
        scene.ok(2 + surplus)
        assert scene.pool.ends == [(each, None) for each in made]
        assert scene.broken
        late = scene.send(b"late")
        scene.ok()
        scene.lose(None)
        assert scene.pool.ends[2:] == [(late[0], late[0].error)]
        assert isinstance(late[0].error, PublishUncertain)
        assert "an OK to nothing" in str(late[0].error)

    def test_counters_are_up_to_date_when_a_caller_is_told(self, scene: Scene) -> None:
        seen: list[tuple[object, ...]] = []
        endpoint = scene.endpoint
        endpoint.backoff.failed(LOST, 0.0, 1.0)
        endpoint.overdue = True
        scene.pool.on_settled = lambda: seen.append(
            (endpoint.published, endpoint.pending, endpoint.overdue, endpoint.backoff.failures)
        )
        scene.send(b"a", b"b")
        scene.ok()
        assert seen == [(2, 0, False, 0)]

    def test_the_first_proves_the_connection_and_the_pool_looks_once(self, scene: Scene) -> None:
        scene.endpoint.backoff.failed(LOST, 0.0, 1.0)
        scene.send(b"a")
        scene.ok()
        assert (scene.endpoint.backoff.failures, scene.endpoint.backoff.reason) == (0, None)
        assert scene.pool.looks == 1
        scene.send(b"b")
        scene.ok()
        assert scene.pool.looks == 1

    def test_an_overdue_connection_is_preferred_again(self, scene: Scene) -> None:
        scene.send(b"a", b"b")
        scene.ok()
        scene.endpoint.overdue = True
        assert scene.endpoint.state == "overdue"
        scene.send(b"c")
        scene.ok()
        assert scene.endpoint.state == "open"
        assert scene.pool.looks == 2


#: How many were joined, retry_uncertain, the error: what each ends with (None: it is sent again), whether the
#: connection is closed, how many failures are counted.
REFUSALS: list[tuple[int, bool, ServerError, type[NsqError] | None, bool, int]] = [
    (1, False, BadMessage("E_BAD_MESSAGE"), BadMessage, True, 1),
    (1, True, BadTopic("E_BAD_TOPIC"), BadTopic, True, 1),
    (1, False, PubFailed("E_PUB_FAILED"), None, True, 1),
    (1, False, MpubFailed("E_MPUB_FAILED"), MpubFailed, True, 1),
    (1, True, MpubFailed("E_MPUB_FAILED"), None, True, 1),
    (3, False, BadMessage("E_BAD_MESSAGE"), None, True, 0),
    (3, False, BadBody("E_BAD_BODY"), None, True, 0),
    (3, False, Unauthorized("E_UNAUTHORIZED"), Unauthorized, True, 3),
    (3, False, MpubFailed("E_MPUB_FAILED"), PublishUncertain, True, 3),
    (3, True, MpubFailed("E_MPUB_FAILED"), None, True, 3),
    (1, False, QUOTA, ServerError, False, 1),
    (3, True, QUOTA, ServerError, False, 3),
    (1, False, FinFailed("E_FIN_FAILED"), FinFailed, False, 1),
]


class TestError:
    @pytest.mark.parametrize(("count", "retry_uncertain", "error", "kind", "closed", "failed"), REFUSALS)
    def test_what_becomes_of_those_it_answers(
        self,
        count: int,
        retry_uncertain: bool,
        error: ServerError,
        kind: type[NsqError] | None,
        closed: bool,
        failed: int,
    ) -> None:
        scene = Scene(retry_uncertain=retry_uncertain)
        made = scene.send(*[b"%d" % number for number in range(count)])
        scene.refuse(error)
        scene.lose()
        assert scene.pool.errors == ([] if kind is None else [kind] * count)
        assert scene.pool.back == (made if kind is None else [])
        assert scene.broken is closed
        assert (scene.endpoint.failed, scene.endpoint.published, scene.endpoint.pending) == (failed, 0, 0)

    @pytest.mark.parametrize("error", [BadMessage("E_BAD_MESSAGE"), BadBody("E_BAD_BODY")])
    def test_those_of_a_refused_batch_are_sent_one_by_one(self, scene: Scene, error: ServerError) -> None:
        made = scene.send(b"a", b"b", b"c")
        scene.refuse(error)
        scene.lose()
        assert [each.endpoint for each in made] == [None] * 3
        scene.fake.waiting.extend(scene.pool.back)
        assert write(scene.endpoint) == b"".join(commands.pub("orders", body) for body in (b"a", b"b", b"c"))
        scene.refuse(BadMessage("E_BAD_MESSAGE: the first is too large"))
        assert scene.pool.ends == [(made[0], made[0].error)]
        assert isinstance(made[0].error, BadMessage)

    def test_one_that_has_ended_meanwhile_is_not_sent_again(self, scene: Scene) -> None:
        ended, again = scene.send(b"ended", b"again")
        ended.end(PublishUncertain("no answer in time"))
        scene.refuse(BadMessage("E_BAD_MESSAGE"))
        scene.lose()
        assert scene.pool.back == [again]
        assert [publish for publish, _ in scene.pool.ends] == [ended]  # its room is given back

    def test_after_a_batch_that_was_stored_in_part_nothing_is_joined_until_an_ok(self, scene: Scene) -> None:
        scene.send(b"a", b"b")
        scene.refuse(MpubFailed("E_MPUB_FAILED"))
        scene.lose()
        scene.reconnect()
        scene.put(b"c", b"d")
        assert write(scene.endpoint) == commands.pub("orders", b"c") + commands.pub("orders", b"d")
        scene.ok()
        scene.put(b"e", b"f")
        assert write(scene.endpoint) == commands.mpub("orders", [b"e", b"f"])

    def test_behind_a_fatal_error_nothing_was_executed(self) -> None:
        scene = alone()
        first, second, third = scene.send(b"a", b"b", b"c")
        scene.ok()
        scene.refuse(BadTopic("E_BAD_TOPIC"))
        scene.lose()
        assert [publish for publish, _ in scene.pool.ends] == [first, second]
        assert scene.pool.back == [third]
        assert third.doubts == ()
        assert scene.endpoint.failed == 1

    def test_unless_the_server_goes_on(self) -> None:
        scene = alone()
        scene.send(b"a", b"b", b"c")
        scene.refuse(BadTopic("E_BAD_TOPIC"))
        scene.ok()
        scene.lose()
        assert scene.pool.errors == [BadTopic, type(None), PublishUncertain]
        assert scene.pool.back == []

    def test_a_code_that_nsqd_does_not_have_ends_no_connection(self) -> None:
        scene = alone()
        scene.send(b"a", b"b", b"c")
        scene.refuse(QUOTA)
        scene.ok()
        assert scene.endpoint.open
        scene.lose()
        assert scene.pool.errors == [ServerError, type(None), PublishUncertain]

    @pytest.mark.parametrize(("error", "closed"), [(PubFailed("E_PUB_FAILED"), True), (QUOTA, False)])
    def test_an_error_to_nothing(self, scene: Scene, error: ServerError, closed: bool) -> None:
        scene.refuse(error)
        assert scene.pool.ends == []
        assert scene.broken is closed
        assert scene.endpoint.failed == 0


class TestSilence:
    @pytest.mark.parametrize(
        ("story", "closed"),
        [
            ("-", False),
            ("send =", False),
            ("send >", True),
            ("send > ok >", False),
            ("send send < ok < ok", False),
            ("send send < ok =", False),
            ("send send < ok >", True),
            ("send < send < <", True),
            ("> send =", False),
        ],
    )
    def test_heartbeats_do_not_stand_for_an_answer(self, story: str, closed: bool) -> None:
        """``<``, ``=``, ``>``: less than read_timeout goes by, as much, or more. Then a heartbeat comes."""
        scene = alone()
        steps: dict[str, Callable[[], object]] = {
            "send": lambda: scene.send(b"body"),
            "ok": scene.ok,
            "-": lambda: None,
            "<": lambda: self.wait(scene, 0.6 * PATIENCE),
            "=": lambda: self.wait(scene, PATIENCE),
            ">": lambda: self.wait(scene, PATIENCE + 0.001),
        }
        for step in story.split():
            steps[step]()
        scene.endpoint.on_heartbeat(scene.conn)
        assert scene.broken is closed

    def wait(self, scene: Scene, seconds: float) -> None:
        scene.clock.now += seconds

    def test_what_was_not_answered_is_uncertain_and_says_why(self, scene: Scene) -> None:
        (made,) = scene.send(b"body")
        scene.clock.now += 2 * PATIENCE
        scene.endpoint.on_heartbeat(scene.conn)
        scene.lose(None)
        assert isinstance(made.error, PublishUncertain)
        assert isinstance(made.error.__cause__, Unanswered)
        assert f"{A} sends heartbeats, but has not answered for 60 s" in str(made.error)


@pytest.mark.parametrize(
    ("tell", "text"),
    [
        (lambda scene: scene.endpoint.on_messages(scene.conn, []), "sent messages to a connection"),
        (lambda scene: scene.endpoint.on_response(scene.conn, b"WHAT" * 99), "WHATWHAT"),
    ],
    ids=["a message", "what is no answer"],
)
def test_what_answers_no_publish_ends_the_connection(tell: Callable[[Scene], None], text: str) -> None:
    scene = alone()
    made = scene.send(b"a", b"b")
    scene.ok()
    tell(scene)
    assert scene.broken
    scene.ok()  # to which of them?
    scene.lose(None)
    assert scene.pool.errors == [type(None), PublishUncertain]
    assert isinstance(made[1].error, PublishUncertain)
    assert isinstance(made[1].error.__cause__, WireError)
    assert text in str(made[1].error)
    assert len(str(made[1].error)) < 300


def test_an_error_behind_what_cannot_be_matched_answers_nothing(scene: Scene) -> None:
    (made,) = scene.send(b"body")
    scene.endpoint.on_response(scene.conn, b"WHAT")
    scene.refuse(PubFailed("E_PUB_FAILED"))
    scene.lose(None)
    assert scene.pool.back == []
    assert isinstance(made.error, PublishUncertain)


def test_the_first_reason_to_end_the_connection_counts(scene: Scene) -> None:
    (made,) = scene.send(b"body")
    scene.endpoint.on_response(scene.conn, b"WHAT")
    scene.endpoint.on_messages(scene.conn, [])
    scene.lose()
    assert "WHAT" in str(made.error)


class TestClose:
    @pytest.mark.parametrize("retry_uncertain", [False, True])
    def test_what_was_sent_is_uncertain_and_what_was_not_is_taken_back(self, retry_uncertain: bool) -> None:
        scene = Scene(retry_uncertain=retry_uncertain)
        sent = scene.send(b"a", b"b")
        waiting = scene.put(b"c", b"d")
        scene.fake.waiting.append(NOP)
        scene.lose()
        uncertain = [] if retry_uncertain else sent
        assert [publish for publish, _ in scene.pool.ends] == uncertain
        assert sorted(bodies(scene.pool.back)) == sorted(
            bodies([*waiting, *(sent if retry_uncertain else [])])
        )
        assert [each.doubts for each in sent] == [(A,), (A,)]
        assert all(each.claim.acquire(False) for each in scene.pool.back)
        assert (scene.endpoint.pending, scene.endpoint.failed) == (0, 2)
        for publish in uncertain:
            assert isinstance(publish.error, PublishUncertain)
            assert publish.error.__cause__ is LOST

    def test_one_that_has_ended_meanwhile_is_not_tried_again(self) -> None:
        scene = Scene(retry_uncertain=True)
        ended, again = scene.send(b"ended", b"again")
        ended.end(PublishUncertain("no answer in time"))
        scene.lose()
        assert scene.pool.back == [again]
        assert [publish for publish, _ in scene.pool.ends] == [ended]

    def test_a_connection_that_was_closed_as_asked_has_a_reason_all_the_same(self, scene: Scene) -> None:
        (made,) = scene.send(b"body")
        scene.lose(None)
        assert f"the connection to {A} was closed" in str(made.error)

    @pytest.mark.parametrize(
        ("proven", "cause", "pause", "reason", "failures"),
        [
            (True, LOST, 0.0, True, 0),
            (True, Unanswered("silent"), 0.0, True, 0),
            (True, WireError("garbage"), 4.0, True, 1),
            (True, PubFailed("E_PUB_FAILED"), 4.0, True, 1),
            (True, Unauthorized("E_UNAUTHORIZED"), 0.0, False, 0),
            (False, LOST, 4.0, True, 1),
            (False, WireError("garbage"), 4.0, True, 1),
            (False, PubFailed("E_PUB_FAILED"), 4.0, True, 1),
            (False, BadMessage("E_BAD_MESSAGE"), 0.0, False, 0),
        ],
        ids=[
            "it worked and is lost",
            "it worked and fell silent",
            "it worked and then broke the protocol",
            "it worked and can store no more",
            "it worked, and a caller was at fault",
            "it never answered",
            "it never answered but with garbage",
            "it cannot store",
            "its first caller was at fault",
        ],
    )
    def test_when_it_is_dialed_again(
        self, proven: bool, cause: NsqError, pause: float, reason: bool, failures: int
    ) -> None:
        scene = alone()
        scene.send(b"a", b"b")
        if proven:
            scene.ok()
        if isinstance(cause, ServerError):
            scene.refuse(cause)
        scene.lose(cause)
        backoff = scene.endpoint.backoff
        assert backoff.due_at(urgent=False) - scene.clock.now == pause
        assert backoff.reason == (cause if reason else None)
        assert (backoff.failures, backoff.final) == (failures, False)

    @pytest.mark.parametrize("error", [Unauthorized("E_UNAUTHORIZED"), QUOTA])
    def test_one_that_refuses_before_it_was_asked_anything_pauses(
        self, scene: Scene, error: ServerError
    ) -> None:
        scene.refuse(error)
        scene.lose(error)
        assert scene.endpoint.backoff.pause > 0

    def test_a_failure_after_a_success_pauses_as_the_first(self) -> None:
        scene = alone()
        for _ in range(3):
            scene.lose()
        assert scene.endpoint.backoff.pause == 16.0
        scene.send(b"a")
        scene.ok()
        scene.lose(WireError("garbage"))
        assert scene.endpoint.backoff.pause == 4.0

    @pytest.mark.parametrize("stopped", [False, True])
    def test_a_loss_is_logged_unless_it_was_wanted(
        self, scene: Scene, stopped: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        if stopped:
            scene.endpoint.stop()
        scene.lose()
        assert ("is lost" in caplog.text) is not stopped


class TestDial:
    """Without a transport that connects."""

    def failing(self, scene: Scene, error: Exception) -> None:
        class Failing(MemoryTransport):
            def connect(self, address: str, *, timeout: float) -> Any:
                raise error

        scene.pool.transport = Failing()
        scene.clock.now = time.monotonic()  # the dial has a deadline

    @pytest.mark.parametrize(
        ("error", "final", "reason", "bug"),
        [
            (DialFailed("connection refused"), False, "connection refused", False),
            (HandshakeFailed("no TLS"), True, "no TLS", False),
            (Unauthorized("E_UNAUTHORIZED"), True, "E_UNAUTHORIZED", False),
            (RuntimeError("proxy misconfigured"), False, "RuntimeError('proxy misconfigured')", True),
        ],
    )
    def test_a_failure_is_noted_and_logged(
        self,
        scene: Scene,
        error: Exception,
        final: bool,
        reason: str,
        bug: bool,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self.failing(scene, error)
        scene.endpoint._dial()
        endpoint = scene.endpoint
        assert (endpoint.dialing, endpoint.backoff.final, endpoint.backoff.failures) == (False, final, 1)
        assert reason in endpoint.reason
        assert endpoint.reason.startswith(A)
        assert ("Traceback" in caplog.text) is bug
        assert f"no connection to {A}, next try in 4.0 s" in caplog.text

    def test_only_the_first_of_several_failures_is_a_warning(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.failing(scene, DialFailed("connection refused"))
        with caplog.at_level(logging.INFO, "nsq.producer"):
            for _ in range(3):
                scene.endpoint._dial()
        assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO, logging.INFO]

    def test_nothing_of_the_connection_before_is_left(self) -> None:
        scene = alone()
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

    def test_one_that_is_stopped_while_it_dials_closes_what_it_dialed(self, scene: Scene) -> None:
        transport = MemoryTransport()
        scene.pool.transport = transport
        scene.clock.now = time.monotonic()
        scene.endpoint.stop()
        scene.endpoint._dial()
        assert [peer.closed for peer in transport.peers] == [True]
        assert not scene.endpoint.dialing
        assert not scene.endpoint.open


class TestPause:
    def test_the_pool_is_told_and_a_dial_that_is_due_does_not_wait(self, scene: Scene) -> None:
        scene.endpoint._pause()
        assert scene.pool.looks == 1

    def test_one_that_is_stopped_does_not_wait(self, scene: Scene) -> None:
        scene.endpoint.backoff.failed(LOST, scene.clock.now, 1.0)
        scene.endpoint.stop()
        scene.endpoint._pause()

    def test_it_is_over_sooner_when_a_publish_waits(self, scene: Scene) -> None:
        """The bell has it look again, and only that."""
        looks: list[bool] = []

        class Urgent(FakePool):
            @property
            def urgent(self) -> bool:  # type: ignore[override]
                looks.append(len(looks) == 2)
                return looks[-1]

            @urgent.setter
            def urgent(self, value: bool) -> None: ...

        pool: Any = Urgent()
        endpoint = Endpoint(pool, Config(reconnect_initial=4.0), scene.clock, lambda: 1.0)
        endpoint.backoff.failed(LOST, scene.clock.now - 1.5, 1.0)
        endpoint.ring()
        endpoint.ring()
        endpoint._pause()
        assert looks == [False, False, True]


class TestThreads:
    def test_without_a_second_thread_the_first_is_sent_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started: list[str] = []

        class Thread:
            def __init__(self, *, target: object, name: str, daemon: bool) -> None:
                self.name = name
                assert daemon

            def start(self) -> None:
                if started:
                    raise RuntimeError("can't start new thread")
                started.append(self.name)

        monkeypatch.setattr(endpoint_module.threading, "Thread", Thread)
        endpoint = Scene().endpoint
        with pytest.raises(RuntimeError, match="can't start"):
            endpoint.start()
        assert started == ["nsq-producer-write"]
        assert endpoint._to_write.get_nowait() is None

    def test_they_are_named_after_the_address(self, scene: Scene) -> None:
        scene.endpoint.threads = [threading.Thread(name="nsq-producer-read")]
        scene.endpoint.assign(A)
        assert [thread.name for thread in scene.endpoint.threads] == [f"nsq-producer-read-{A}"]
        assert scene.endpoint.dialing

    @pytest.mark.parametrize(
        ("dialing", "connected", "closes"), [(False, True, [True]), (True, True, [False]), (False, False, [])]
    )
    def test_stop_lets_an_open_connection_write_and_ends_a_dial(
        self, scene: Scene, dialing: bool, connected: bool, closes: list[bool]
    ) -> None:
        if not connected:
            scene.endpoint._latest = None
        scene.endpoint.dialing = dialing
        scene.endpoint.stop()
        scene.endpoint.stop()
        assert scene.fake.closes == closes * 2

    @pytest.mark.parametrize("connected", [True, False])
    def test_cut_off_and_abandon_know_what_there_is(self, scene: Scene, connected: bool) -> None:
        if not connected:
            scene.endpoint._latest = None
        scene.endpoint.cut_off()
        scene.endpoint.abandon()
        assert scene.fake.closes == [False] * connected
        assert scene.fake.abandoned is connected


class TestKnown:
    @pytest.mark.parametrize(
        ("dialing", "closed", "overdue", "state"),
        [
            (False, False, False, "open"),
            (False, False, True, "overdue"),
            (False, True, False, "idle"),
            (False, True, True, "idle"),
            (True, False, False, "dialing"),
            (True, True, True, "dialing"),
        ],
    )
    def test_the_state(self, scene: Scene, dialing: bool, closed: bool, overdue: bool, state: str) -> None:
        scene.endpoint.dialing, scene.fake.closed, scene.endpoint.overdue = dialing, closed, overdue
        assert scene.endpoint.state == state
        assert scene.endpoint.open is (state in ("open", "overdue"))

    def test_one_whose_connection_takes_nothing_more_is_not_open(self, scene: Scene) -> None:
        scene.endpoint.stop()
        assert not scene.endpoint.open

    @pytest.mark.parametrize(
        ("dialing", "reason", "words"),
        [
            (False, None, f"{A}: not reached yet"),
            (True, None, f"{A}: still being dialed"),
            (True, DialFailed("connection refused"), f"{A}: connection refused"),
            (False, DialFailed(f"{A}: connection refused"), f"{A}: connection refused"),
        ],
    )
    def test_the_reason(self, scene: Scene, dialing: bool, reason: NsqError | None, words: str) -> None:
        scene.endpoint.dialing = dialing
        scene.endpoint.backoff.reason = reason
        assert scene.endpoint.reason == words

    def test_stats(self) -> None:
        scene = alone()
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

    def test_it_says_what_it_is(self, scene: Scene) -> None:
        scene.send(b"a")
        scene.put(b"b")
        assert repr(scene.endpoint) == f"<Endpoint {A}, 2 pending>"


class Interleaved(deque[Any]):
    """A queue of publishes in which ``at`` is called behind each one that is taken out."""

    def __init__(self, items: Iterable[object], at: Callable[[Publish], object]) -> None:
        super().__init__(items)
        self._at = at

    def popleft(self) -> Any:
        item = super().popleft()
        self._at(item)
        return item


class TestRaces:
    def test_a_cancel_right_before_the_claim_wins_and_one_right_behind_it_loses(self, scene: Scene) -> None:
        before, behind = Publish("orders", b"before"), Publish("orders", b"behind")
        won: list[bool] = []

        def cancel(taken: Publish) -> None:
            if taken is before:
                won.append(before.claim.acquire(False))
            elif taken is last:
                won.append(behind.claim.acquire(False))

        last = Publish("orders", b"last")
        waiting = Interleaved([before, behind, last], cancel)
        assert scene.endpoint._encode(waiting, scene.endpoint._sent) == commands.mpub(
            "orders", [b"behind", b"last"]
        )
        assert won == [True, False]

    def test_what_is_put_while_the_write_loop_takes_goes_out_behind(self, scene: Scene) -> None:
        late = Publish("orders", b"late")

        def put(taken: Publish) -> None:
            if taken is not late:
                waiting.append(late)

        waiting = Interleaved([Publish("orders", b"first")], put)
        assert scene.endpoint._encode(waiting, scene.endpoint._sent) == commands.mpub(
            "orders", [b"first", b"late"]
        )

    def test_the_pool_takes_back_what_the_write_loop_does_not_get(self, scene: Scene) -> None:
        """Both empty the queue of a connection that ends: each publish goes one way."""
        made = [Publish("orders", b"%d" % number) for number in range(4)]

        def take_back(taken: Publish) -> None:
            if taken is made[1]:
                scene.pool.take_back(deque([waiting.pop()]))

        waiting = Interleaved(made, take_back)
        assert scene.endpoint._encode(waiting, scene.endpoint._sent) == commands.mpub(
            "orders", [b"0", b"1", b"2"]
        )
        assert scene.pool.back == made[3:]
        assert made[3].claim.acquire(False)

    def test_what_a_late_write_loop_takes_is_not_answered_by_the_next_connection(self) -> None:
        """It stood still for so long that the connection was buried without it."""
        scene = Scene()

        def stand_still(taken: Publish) -> None:
            scene.lose()
            scene.reconnect()

        late = Publish("orders", b"late")
        scene.endpoint._encode(Interleaved([late], stand_still), scene.endpoint._sent)
        (after,) = scene.send(b"after")
        scene.ok()
        assert not late.ended or late.error is not None
        assert after.ended
