"""A publish from its making to its end, without a connection: joined, refused, lost, claimed, awaited."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import pairwise
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
    InvalidMessage,
    InvalidName,
    MpubFailed,
    NsqError,
    PubFailed,
    PublishFailed,
    PublishUncertain,
    ServerError,
    Unauthorized,
    UsageError,
    server_error,
)
from nsq.producer.publishes import (
    Publish,
    PublishFuture,
    checked_timeout,
    command_of,
    join,
    lost,
    new_multi_publish,
    new_publish,
    refused,
    unsent,
)
from nsq.waiting import Signal
from nsq.wire import commands

A, B = "nsqd-a:4150", "nsqd-b:4150"
PATIENCE = 20.0
KIB = 1024
CONFIG = Config(max_msg_size=100)
LOST = ConnectionLost("nsqd-a:4150 closed the connection")


def publish(topic: str = "orders", body: bytes = b"body", *, alone: bool = False) -> Publish:
    made = Publish(topic, body)
    made.alone = alone
    return made


def deferred(topic: str = "orders") -> Publish:
    return new_publish(Publish, topic, b"deferred", 1.0, CONFIG)


def in_threads(*calls: Callable[[], object]) -> list[object]:
    """What they return, called at once."""
    start = threading.Barrier(len(calls))
    results: dict[int, object] = {}

    def run(place: int) -> None:
        start.wait(PATIENCE)
        results[place] = calls[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return [results[place] for place in range(len(calls))]


class TestMade:
    def test_a_message(self) -> None:
        made = new_publish(Publish, "orders", b"body", None, CONFIG)
        assert (made.topic, made.body, made.command) == ("orders", b"body", None)
        assert (made.messages, made.size) == (1, 4)
        assert not made.ended
        assert repr(made) == "<Publish orders, 1 messages>"

    @pytest.mark.parametrize("body", [bytearray(b"body"), memoryview(b"body"), memoryview(b"xbxoxdxy")[1::2]])
    def test_whatever_is_like_bytes_is_copied(self, body: object) -> None:
        assert new_publish(Publish, "orders", body, None, CONFIG).body == b"body"

    @pytest.mark.parametrize(
        ("defer", "milliseconds"),
        [(0.001, 1), (30, 30_000), (30.0, 30_000), (1.2345, 1234), (3600, 3_600_000)],
    )
    def test_a_deferred_message_is_dpub_in_milliseconds(self, defer: float, milliseconds: int) -> None:
        made = new_publish(Publish, "orders", b"body", defer, CONFIG)
        assert made.command == commands.dpub("orders", milliseconds, b"body")
        assert (made.messages, made.size) == (1, 4)

    @pytest.mark.parametrize("defer", [0, 0.0, 0.0001])
    def test_a_delay_of_nothing_is_none(self, defer: float) -> None:
        made = new_publish(Publish, "orders", b"body", defer, CONFIG)
        assert (made.command, made.body) == (None, b"body")

    @pytest.mark.parametrize("defer", [-0.001, 3600.1, math.inf, math.nan, True, "30"])
    def test_a_delay_out_of_range_is_named(self, defer: float) -> None:
        with pytest.raises(InvalidMessage, match=r"^defer is .* must be"):
            new_publish(Publish, "orders", b"body", defer, CONFIG)

    @pytest.mark.parametrize("topic", ["", "no spaces", "ümlaut", "x" * 65, None])
    def test_a_topic_is_checked(self, topic: str) -> None:
        with pytest.raises(InvalidName):
            new_publish(Publish, topic, b"body", None, CONFIG)
        with pytest.raises(InvalidName):
            new_multi_publish(Publish, topic, [b"body"], CONFIG)

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            ("text", "the message is a str, must be bytes: encode it"),
            (7, "the message is a int, must be bytes"),
            (None, "the message is a NoneType"),
            (b"", "the message is empty"),
            (b"x" * 101, "the message has 101 bytes, must have at most 100"),
            (bytearray(101), "the message has 101 bytes, must have at most 100"),
        ],
    )
    def test_a_body_is_checked(self, body: object, text: str) -> None:
        with pytest.raises(InvalidMessage, match=text):
            new_publish(Publish, "orders", body, None, CONFIG)

    def test_a_body_of_the_largest_size_is_taken(self) -> None:
        assert new_publish(Publish, "orders", b"x" * 100, None, CONFIG).size == 100

    def test_several_messages_from_any_iterable(self) -> None:
        made = new_multi_publish(Publish, "orders", (body for body in (b"one", bytearray(b"three"))), CONFIG)
        assert made.command == commands.mpub("orders", [b"one", b"three"])
        assert (made.messages, made.size) == (2, 8)

    @pytest.mark.parametrize(
        ("bodies", "text"),
        [
            ([], "bodies is empty, must hold at least one message"),
            (b"body", "bodies is one bytes, must be several"),
            ("body", "bodies is one str, must be several"),
            (None, "bodies is None, must be a list"),
            ([b"fine", b""], "message 1 is empty"),
            ([b"fine", b"fine", "text"], "message 2 is a str"),
            ([b"x" * 101], "message 0 has 101 bytes"),
        ],
    )
    def test_bodies_are_checked_each(self, bodies: list[object], text: str) -> None:
        with pytest.raises(UsageError, match=text):
            new_multi_publish(Publish, "orders", bodies, CONFIG)

    def test_bodies_are_checked_together(self) -> None:
        config = Config()
        body = b"x" * config.max_msg_size
        assert new_multi_publish(Publish, "orders", [body] * 4, config).messages == 4
        with pytest.raises(
            InvalidMessage, match="5 messages take 5242904 bytes together, must be at most 5242880"
        ):
            new_multi_publish(Publish, "orders", [body] * 5, config)

    def test_an_nsqd_may_take_larger_batches_and_later_messages(self) -> None:
        config = Config(max_body_size=10 * KIB * KIB, max_defer=86400.0)
        body = b"x" * config.max_msg_size
        assert new_multi_publish(Publish, "orders", [body] * 8, config).messages == 8
        late = new_publish(Publish, "orders", b"body", 86400.0, config)
        assert late.command == commands.dpub("orders", 86_400_000, b"body")
        with pytest.raises(InvalidMessage, match="defer is 86401 s, must be 0 to 86400 s"):
            new_publish(Publish, "orders", b"body", 86401.0, config)

    def test_one_message_of_the_largest_size_is_always_a_batch(self) -> None:
        config = Config(max_msg_size=6 * KIB * KIB)
        assert new_multi_publish(Publish, "orders", [b"x" * config.max_msg_size], config).messages == 1


class TestTimeout:
    @pytest.mark.parametrize(
        ("timeout", "may_be_zero", "seconds"), [(None, False, 10.0), (5, False, 5.0), (0, True, 0.0)]
    )
    def test_in_seconds(self, timeout: float | None, may_be_zero: bool, seconds: float) -> None:
        assert checked_timeout(timeout, 10.0, may_be_zero=may_be_zero) == seconds

    @pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan, "5", True])
    def test_anything_else_is_named(self, timeout: float) -> None:
        with pytest.raises(UsageError, match=r"^timeout is .* must be"):
            checked_timeout(timeout, 10.0)


def joined(*publishes: Publish, largest: int = 5 * KIB * KIB) -> list[list[int]]:
    """The batches, as places in ``publishes``."""
    batches = join(list(publishes), largest)
    return [[publishes.index(each) for each in batch] for batch in batches]


def body_of(batch: list[Publish]) -> bytes:
    """The body of an MPUB."""
    head, _, rest = command_of(batch).partition(b"\n")
    assert head == b"MPUB " + batch[0].topic.encode()
    assert len(rest) == 4 + int.from_bytes(rest[:4], "big")
    return rest[4:]


#: A small set of topics, all kinds of publishes, and bodies up to a little more than may be joined.
anything = st.lists(
    st.builds(
        lambda topic, size, kind: (
            deferred(topic) if kind == "deferred" else publish(topic, b"x" * size, alone=kind == "alone")
        ),
        st.sampled_from(["orders", "users", "events"]),
        st.one_of(
            st.integers(1, 100), st.integers(100 * KIB, 300 * KIB), st.integers(512 * KIB - 12, 512 * KIB + 8)
        ),
        st.sampled_from(["", "", "", "deferred", "alone"]),
    ),
    max_size=30,
)


class TestJoin:
    @pytest.mark.parametrize(
        ("publishes", "batches"),
        [
            ([], []),
            ([publish()], [[0]]),
            ([publish(), publish(), publish()], [[0, 1, 2]]),
            ([publish("a"), publish("b"), publish("a"), publish("b")], [[0, 2], [1, 3]]),
            ([deferred()], [[0]]),
            ([publish(), deferred(), publish(), publish()], [[0], [1], [2, 3]]),
            ([publish("a"), deferred("b"), publish("a")], [[0, 2], [1]]),
            ([publish(), publish(alone=True), publish()], [[0], [1], [2]]),
            ([publish(), publish(body=b"x" * 512 * KIB), publish()], [[0], [1], [2]]),
            ([publish(body=b"x" * 200 * KIB) for _ in range(4)], [[0, 1], [2, 3]]),
        ],
        ids=[
            "none",
            "one",
            "one topic",
            "two topics",
            "one deferred",
            "a deferred one between",
            "a deferred one of another topic",
            "one that was refused between",
            "a large one between",
            "more bytes than one batch holds",
        ],
    )
    def test_which_go_together(self, publishes: list[Publish], batches: list[list[int]]) -> None:
        assert joined(*publishes) == batches

    def test_a_thousand_messages_at_most(self) -> None:
        sizes = [len(batch) for batch in join([publish() for _ in range(2500)], 5 * KIB * KIB)]
        assert sizes == [1000, 1000, 500]

    def test_none_when_joining_is_switched_off(self) -> None:
        assert joined(publish(), publish(), largest=0) == [[0], [1]]

    @given(anything, st.integers(0, 600 * KIB))
    def test_all_are_sent_once_and_in_the_order_of_their_topic(
        self, publishes: list[Publish], largest: int
    ) -> None:
        batches = join(publishes, largest)
        sent = [each for batch in batches for each in batch]
        assert len(sent) == len(publishes)
        for topic in ("orders", "users", "events"):
            assert [each for each in sent if each.topic == topic] == [
                each for each in publishes if each.topic == topic
            ]
        for batch in batches:
            assert len({each.topic for each in batch}) == 1
            assert len(batch) == 1 or not any(each.command or each.alone for each in batch)

    @given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(0, 200))
    def test_no_batch_is_larger_than_nsqd_accepts(self, sizes: list[int], largest: int) -> None:
        """To nsqd the body of an MPUB is the count of its messages, then each with its size."""
        publishes = [publish(body=b"x" * size) for size in sizes]
        for batch in join(publishes, largest):
            assert len(batch) == 1 or len(body_of(batch)) <= largest

    @given(anything)
    def test_no_batch_has_more_than_a_thousand_messages_or_512_kib(self, publishes: list[Publish]) -> None:
        """Of messages, each with its size."""
        for batch in join(publishes, 2**31):
            assert len(batch) <= 1000
            assert len(batch) == 1 or sum(4 + each.size for each in batch) <= 512 * KIB

    @given(anything)
    def test_two_batches_of_a_topic_in_a_row_would_not_fit_into_one(self, publishes: list[Publish]) -> None:
        batches = [batch for batch in join(publishes, 2**31) if batch[0].topic == "orders"]
        for one, other in pairwise(batches):
            both = one + other[:1]
            if not any(each.command or each.alone for each in both):
                assert 4 + sum(4 + each.size for each in both) > 512 * KIB


class TestCommands:
    @pytest.mark.parametrize(
        ("batch", "command"),
        [
            ([publish(body=b"one")], commands.pub("orders", b"one")),
            ([publish(body=b"one"), publish(body=b"two")], commands.mpub("orders", [b"one", b"two"])),
            ([deferred()], commands.dpub("orders", 1000, b"deferred")),
            (
                [new_multi_publish(Publish, "orders", [b"one", b"two"], CONFIG)],
                commands.mpub("orders", [b"one", b"two"]),
            ),
        ],
        ids=["PUB", "joined", "DPUB", "MPUB"],
    )
    def test_of_a_batch(self, batch: list[Publish], command: bytes) -> None:
        assert command_of(batch) == command


REFUSALS: list[tuple[int, ServerError, bool, type[NsqError], bool, bool]] = [
    # How many were joined, the error, retry_uncertain: the error of each, tried again?, in doubt?
    (1, BadMessage("E_BAD_MESSAGE"), False, BadMessage, False, False),
    (1, BadBody("E_BAD_BODY"), True, BadBody, False, False),
    (1, BadTopic("E_BAD_TOPIC"), False, BadTopic, False, False),
    (1, PubFailed("E_PUB_FAILED"), False, PubFailed, True, False),
    (1, MpubFailed("E_MPUB_FAILED"), False, MpubFailed, False, True),
    (1, MpubFailed("E_MPUB_FAILED"), True, MpubFailed, True, True),
    (1, server_error(b"E_NEW what is this"), False, ServerError, False, False),
    (3, BadMessage("E_BAD_MESSAGE"), False, BadMessage, True, False),
    (3, BadBody("E_BAD_BODY"), False, BadBody, True, False),
    (3, MpubFailed("E_MPUB_FAILED"), False, PublishUncertain, False, True),
    (3, MpubFailed("E_MPUB_FAILED"), True, PublishUncertain, True, True),
    (3, Unauthorized("E_UNAUTHORIZED"), True, Unauthorized, False, False),
]


class TestRefused:
    @pytest.mark.parametrize(("count", "error", "retry_uncertain", "kind", "again", "doubted"), REFUSALS)
    def test_what_becomes_of_each(
        self,
        count: int,
        error: ServerError,
        retry_uncertain: bool,
        kind: type[NsqError],
        again: bool,
        doubted: bool,
    ) -> None:
        batch = [publish() for _ in range(count)]
        verdicts = refused(batch, error, A, retry_uncertain)
        assert [verdict.publish for verdict in verdicts] == batch
        assert {(type(verdict.error), verdict.again) for verdict in verdicts} == {(kind, again)}
        assert {each.doubts for each in batch} == {(A,) if doubted else ()}

    @pytest.mark.parametrize("error", [BadMessage("E_BAD_MESSAGE"), BadBody("E_BAD_BODY")])
    def test_each_of_a_batch_with_a_bad_one_goes_alone_from_then_on(self, error: ServerError) -> None:
        batch = [publish(), publish()]
        refused(batch, error, A, retry_uncertain=False)
        assert joined(*batch) == [[0], [1]]
        alone = publish()
        refused([alone], error, A, retry_uncertain=False)
        assert not alone.alone

    def test_callers_do_not_share_an_error(self) -> None:
        error = server_error(b"E_UNAUTHORIZED not for you")
        errors = [verdict.error for verdict in refused([publish(), publish()], error, A, False)]
        assert len({*map(id, errors), id(error)}) == 3
        for each in errors:
            assert isinstance(each, Unauthorized)
            assert (str(each), each.code) == ("E_UNAUTHORIZED not for you", "E_UNAUTHORIZED")

    def test_uncertainty_names_the_nsqd_and_the_error(self) -> None:
        error = MpubFailed("E_MPUB_FAILED disk full")
        for verdict in refused([publish(), publish()], error, A, False):
            assert str(verdict.error) == (
                "publishing to 'orders': it was sent to nsqd-a:4150 and not answered "
                "(E_MPUB_FAILED disk full); it may be stored"
            )
            assert verdict.error.__cause__ is error

    def test_a_refusal_of_nothing_is_nothing(self) -> None:
        assert refused([], BadMessage("E_BAD_MESSAGE"), A, True) == []


class TestLost:
    def test_behind_a_refusal_nothing_was_executed_and_all_is_sent_again(self) -> None:
        batch = [publish(), publish()]
        verdicts = lost(batch, LOST, A, executed=False, retry_uncertain=False)
        assert verdicts == [(each, LOST, True) for each in batch]
        assert [each.doubts for each in batch] == [(), ()]

    @pytest.mark.parametrize("retry_uncertain", [False, True])
    def test_otherwise_each_may_be_stored(self, retry_uncertain: bool) -> None:
        batch = [publish(), publish()]
        verdicts = lost(batch, LOST, A, executed=True, retry_uncertain=retry_uncertain)
        assert [verdict.publish for verdict in verdicts] == batch
        for verdict in verdicts:
            assert isinstance(verdict.error, PublishUncertain)
            assert verdict.error.__cause__ is LOST
            assert A in str(verdict.error)
            assert verdict.again is retry_uncertain
            assert verdict.publish.doubts == (A,)
        assert verdicts[0].error is not verdicts[1].error


class TestUnsent:
    def test_never_sent_is_surely_not_stored(self) -> None:
        error = unsent(publish(), "no nsqd could be reached")
        assert isinstance(error, PublishFailed)
        assert str(error) == "publishing to 'orders': no nsqd could be reached"

    def test_sent_before_is_in_doubt_wherever_it_was_sent(self) -> None:
        doubted = publish()
        lost([doubted], LOST, A, executed=True, retry_uncertain=True)
        refused([doubted], MpubFailed("E_MPUB_FAILED"), B, True)
        error = unsent(doubted, "no nsqd could be reached")
        assert isinstance(error, PublishUncertain)
        assert "nsqd-a:4150 and nsqd-b:4150" in str(error)
        assert "then: no nsqd could be reached" in str(error)


class TestEnds:
    @pytest.mark.parametrize("error", [None, PublishFailed("no nsqd took it")])
    def test_the_first_counts(self, error: NsqError | None) -> None:
        made = publish()
        assert made.end(error)
        assert made.ended
        assert not made.end(LOST)
        assert made.error is error
        assert repr(made) == "<Publish orders, 1 messages, ended>"

    def test_of_many_at_once_one_counts(self) -> None:
        for _ in range(50):
            made = publish()
            errors = [PublishFailed(str(number)) for number in range(4)]
            won = in_threads(*[partial(made.end, error) for error in errors])
            assert won.count(True) == 1
            assert made.error is errors[won.index(True)]

    def test_whoever_waits_for_it_is_woken(self) -> None:
        made = publish()

        def wait() -> bool:
            return made.wait_for(lambda: made.ended, time.monotonic() + PATIENCE)

        assert in_threads(wait, wait, lambda: made.end(None)) == [True, True, True]

    def test_one_claims_it(self) -> None:
        for _ in range(50):
            claims = in_threads(*[partial(publish().claim.acquire, False)] * 4)
            assert claims.count(True) == 1

    def test_it_is_claimed_anew_when_it_is_sent_again(self) -> None:
        made = publish()
        made.endpoint = object()  # type: ignore[assignment]
        assert made.claim.acquire(False)
        made.try_again()
        assert made.endpoint is None
        assert made.claim.acquire(False)
        assert not made.claim.acquire(False)


class Callbacks:
    """Stands for the thread of that name, and runs at once what it is given."""

    ident = 0

    def put(self, callback: Callable[[], None]) -> None:
        callback()


def future(callbacks: Any = None) -> PublishFuture:
    made = new_publish(PublishFuture, "orders", b"body", None, CONFIG)
    made.callbacks = callbacks or Callbacks()
    return made


def end(made: PublishFuture, error: NsqError | None = None) -> None:
    made.end(error)


FAILED = PublishFailed("no nsqd took it")


class TestFuture:
    def test_under_way_it_runs_and_cannot_be_cancelled(self) -> None:
        made = future()
        assert isinstance(made, Future)
        assert not made.cancel()
        assert (made.running(), made.done(), made.cancelled()) == (True, False, False)
        assert "<Publish orders" in repr(made)
        for wait in (made.result, made.exception):
            with pytest.raises(TimeoutError, match="has not ended within 0 s"):
                wait(0.0)

    def test_stored(self) -> None:
        made = future()
        end(made)
        made.result()
        assert made.exception() is None
        assert (made.running(), made.done(), made.cancel(), made.cancelled()) == (False, True, False, False)

    def test_not_stored(self) -> None:
        made = future()
        end(made, FAILED)
        assert made.exception(0.0) is FAILED
        with pytest.raises(PublishFailed):
            made.result(0.0)

    @pytest.mark.parametrize("timeout", [None, PATIENCE])
    def test_whoever_waits_is_woken(self, timeout: float | None) -> None:
        made = future()
        results = in_threads(
            lambda: made.exception(timeout), lambda: made.exception(timeout), lambda: end(made, FAILED)
        )
        assert results[:2] == [FAILED, FAILED]

    def test_a_waiter_that_is_interrupted_costs_the_others_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: object) -> bool:
            raise KeyboardInterrupt

        made = future()
        with monkeypatch.context() as patched:
            patched.setattr(Signal, "wait", interrupt)
            for wait in (
                concurrent.futures.wait,
                lambda several: next(concurrent.futures.as_completed(several)),
            ):
                with pytest.raises(KeyboardInterrupt):
                    wait([made])
        end(made)
        assert concurrent.futures.wait([made], PATIENCE).done == {made}
        made.result(0.0)


class TestCallbacks:
    def test_are_called_in_their_order_and_later_ones_at_once(self) -> None:
        made, called = future(), list[object]()
        made.add_done_callback(called.append)
        made.add_done_callback(lambda _: called.append("second"))
        assert called == []
        end(made)
        assert called == [made, "second"]
        made.add_done_callback(lambda _: called.append("late"))
        assert called[2:] == ["late"]
        made.wake()
        assert len(called) == 3

    def test_one_that_raises_does_not_keep_the_others(self) -> None:
        made, called = future(), list[object]()

        def fail(_: object) -> None:
            raise ZeroDivisionError

        made.add_done_callback(fail)
        made.add_done_callback(called.append)
        with suppress(ZeroDivisionError):  # the thread that runs callbacks logs it
            end(made)
        assert called == [made]

    def test_one_that_raises_at_once_is_logged_and_not_raised(self, caplog: pytest.LogCaptureFixture) -> None:
        """Like those of the standard library: its caller cannot know whether it runs at once."""
        made = future()
        end(made)
        made.add_done_callback(lambda _: 1 / 0)
        assert "ZeroDivisionError" in caplog.text

    def test_each_is_called_once_however_its_adding_and_the_end_meet(self) -> None:
        for _ in range(100):
            made, called = future(), list[object]()
            add = partial(made.add_done_callback, called.append)
            in_threads(add, partial(end, made), add)
            assert called == [made, made]

    def test_they_must_not_wait_for_futures_of_the_same_producer(self) -> None:
        callbacks = Callbacks()
        callbacks.ident = threading.get_ident()
        made = future(callbacks)
        waits: list[Callable[[], object]] = [
            made.result,
            lambda: made.exception(PATIENCE),
            lambda: concurrent.futures.wait([made]),
            lambda: next(concurrent.futures.as_completed([made])),
        ]
        for wait in waits:
            with pytest.raises(UsageError, match="waits for another future of the same producer"):
                wait()
        end(made)
        for wait in waits:
            wait()


class TestTogether:
    """What concurrent.futures and asyncio do with futures."""

    @pytest.mark.parametrize("error", [None, FAILED])
    @pytest.mark.parametrize(
        ("until", "awaited"),
        [(concurrent.futures.ALL_COMPLETED, 2), (concurrent.futures.FIRST_COMPLETED, 1)],
    )
    def test_several_are_waited_for(self, error: NsqError | None, until: str, awaited: int) -> None:
        futures = [future(), future()]
        (done, others), _ = in_threads(  # type: ignore[misc]
            lambda: concurrent.futures.wait(futures, PATIENCE, until),
            lambda: [end(each, error) for each in futures[:awaited]],
        )
        assert (done, others) == (set(futures[:awaited]), set(futures[awaited:]))

    def test_the_first_failure_is_waited_for(self) -> None:
        stored, failed, open_ = future(), future(), future()

        def end_two() -> None:
            end(stored)
            end(failed, FAILED)

        (done, others), _ = in_threads(  # type: ignore[misc]
            lambda: concurrent.futures.wait(
                [stored, failed, open_], PATIENCE, concurrent.futures.FIRST_EXCEPTION
            ),
            end_two,
        )
        assert (done, others) == ({stored, failed}, {open_})

    def test_those_that_have_ended_are_not_waited_for(self) -> None:
        ended, open_ = future(), future()
        end(ended)
        assert concurrent.futures.wait([ended]).done == {ended}
        assert concurrent.futures.wait([ended, open_], 0.0) == ({ended}, {open_})
        (done, _), _ = in_threads(  # type: ignore[misc]
            lambda: concurrent.futures.wait([ended, open_], PATIENCE), lambda: end(open_)
        )
        assert done == {ended, open_}

    def test_a_wait_that_gave_up_leaves_no_callback(self) -> None:
        made = future()
        for _ in range(3):
            assert concurrent.futures.wait([made], 0.0).not_done == {made}
        assert not made._locks

    def test_they_are_waited_for_with_futures_of_others(self) -> None:
        mine, other = future(), Future[None]()
        for futures in ([mine, other], [other, mine]):
            (done, _), *_ = in_threads(  # type: ignore[misc]
                lambda futures=futures: concurrent.futures.wait(futures, PATIENCE),
                lambda: end(mine),
                lambda: other.done() or other.set_result(None),
            )
            assert done == {mine, other}

    def test_many_wait_for_the_same_while_they_end(self) -> None:
        for _ in range(30):
            futures = [future() for _ in range(4)]

            def ends(part: Iterable[PublishFuture]) -> Callable[[], None]:
                return lambda: [end(each) for each in part] and None

            def wait(futures: list[PublishFuture] = futures) -> set[Any]:
                return concurrent.futures.wait(futures, PATIENCE).done

            first, second, *_ = in_threads(wait, wait, ends(futures[:2]), ends(futures[2:]))
            assert first == second == set(futures)

    def test_they_come_as_they_are_completed(self) -> None:
        first, second, never = future(), future(), future()
        end(second)
        completed = concurrent.futures.as_completed([first, second], PATIENCE)
        assert next(completed) is second
        end(first, FAILED)
        assert next(completed) is first
        with pytest.raises(StopIteration):
            next(completed)
        with pytest.raises(TimeoutError):
            next(concurrent.futures.as_completed([never], 0.0))

    @pytest.mark.parametrize("error", [None, FAILED])
    def test_a_coroutine_can_await_one(self, error: NsqError | None) -> None:
        made = future()

        async def wait() -> None:
            ending = threading.Thread(target=end, args=(made, error))
            wrapped = asyncio.wrap_future(made)
            ending.start()
            try:
                await asyncio.wait_for(wrapped, PATIENCE)
            finally:
                ending.join(PATIENCE)

        if error is None:
            asyncio.run(wait())
        else:
            with pytest.raises(PublishFailed):
                asyncio.run(wait())

    def test_a_coroutine_that_gives_up_does_not_end_the_publish(self) -> None:
        made = future()

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(made), 0.0)
            assert made.running()
            end(made)

        asyncio.run(give_up())
        made.result(0.0)
