"""One nsqd: what the producer sends to it, what it makes of the answers, and when it dials again."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nsq
from nsq.producer.producer import Producer
from nsq.transport import MemoryTransport
from nsq.wire import commands
from nsq.wire.frames import HEARTBEAT, encode_error, encode_message, encode_response
from tests.fakes.nsqd import A, PublishedTo, accept_publisher
from tests.fakes.threads import PATIENCE, in_thread

from .running import connected, connections, eventually, producer, publishing, waiting_together

HALF_MIB = 512 * 1024  # what the write loop takes at a time
BODIES = [b"0", b"1", b"2"]


def send(p: Producer, nsqd: PublishedTo, *bodies: bytes) -> list[Any]:
    """Futures of publishes that nsqd has got and not answered, each as a command of its own."""
    futures = [p.publish_async("orders", body) for body in bodies]
    for body in bodies:
        nsqd.expect(body)
    return futures


def send_joined(p: Producer, nsqd: PublishedTo, *bodies: bytes) -> list[Any]:
    """Futures of publishes that nsqd has got as one command."""
    with waiting_together(p, nsqd):
        futures = [p.publish_async("orders", body) for body in bodies]
    nsqd.peer.expect(
        commands.mpub("orders", bodies) if len(bodies) > 1 else commands.pub("orders", bodies[0])
    )
    return futures


def errors(futures: list[Any]) -> list[type[object]]:
    return [type(future.exception(PATIENCE)) for future in futures]


# Sending


def test_publishes_that_wait_together_are_joined_by_topic_and_one_ok_stores_all(
    transport: MemoryTransport,
) -> None:
    with producer(transport, coalesce=True) as p:
        nsqd = connected(p, transport)
        with waiting_together(p, nsqd):
            futures = [p.publish_async("orders", body) for body in BODIES]
            futures.append(p.publish_async("users", b"alone"))
            futures.append(p.publish_async("orders", b"later", defer=30.0))
            futures.append(p.publish_async("orders", b"behind"))
        for command in (
            commands.mpub("orders", BODIES),
            commands.dpub("orders", 30_000, b"later"),
            commands.pub("orders", b"behind"),
            commands.pub("users", b"alone"),
        ):
            nsqd.peer.expect(command)
            nsqd.ok()
        assert errors(futures) == [type(None)] * 6
        assert p.stats().published == 2 + 6


def test_publishes_beyond_half_a_mebibyte_can_still_be_taken_back(p: Producer, nsqd: PublishedTo) -> None:
    nsqd.peer.stall(after=1)
    futures = [p.publish_async("orders", body) for body in (b"stuck", b"x" * HALF_MIB, b"behind")]
    nsqd.peer.wait_until(lambda got: got.endswith(b"P"))
    nsqd.peer.stall(after=len(commands.pub("orders", b"stuck")))  # and the first byte of the next write
    nsqd.peer.wait_until(lambda got: got.endswith(b"stuckP"))
    p.close(0)
    assert errors(futures) == [nsq.PublishUncertain, nsq.PublishUncertain, nsq.PublishFailed]


# Answers


#: How many are joined, retry_uncertain, nsqd's answer: what each raises (None: it is sent again), whether the
#: connection is closed, how many failures are counted.
REFUSALS: list[tuple[int, bool, str, type[nsq.NsqError] | None, bool, int]] = [
    (1, True, "E_BAD_TOPIC", nsq.BadTopic, True, 1),
    (1, False, "E_BAD_BODY", nsq.BadBody, True, 1),
    (1, False, "E_PUB_FAILED", None, True, 1),
    (1, False, "E_FIN_FAILED", nsq.FinFailed, False, 1),
    (1, False, "E_MPUB_FAILED", nsq.MpubFailed, True, 1),
    (3, False, "E_BAD_BODY", None, True, 0),
    (3, False, "E_MPUB_FAILED", nsq.PublishUncertain, True, 3),
    (3, True, "E_MPUB_FAILED", None, True, 3),
    (3, True, "E_UNAUTHORIZED not for you", nsq.Unauthorized, True, 3),
    (3, True, "E_QUOTA later", nsq.ServerError, False, 3),
]


#: nsqd's answer to an MPUB, what it has told at IDENTIFY, and whether messages may be stored.
MPUB_REFUSALS: list[tuple[str, dict[str, bool], bool]] = [
    ("E_MPUB_FAILED MPUB failed exiting", {"exiting_not_stored": True}, False),
    ("E_MPUB_FAILED MPUB failed exiting", {}, True),  # Go's nsqd may have stored some
    ("E_MPUB_FAILED MPUB failed [Errno 28] exiting", {"exiting_not_stored": True}, True),
]


@pytest.mark.parametrize(("count", "retry_uncertain", "answer", "error", "closed", "failed"), REFUSALS)
def test_what_becomes_of_a_refused_command_and_its_connection(
    transport: MemoryTransport,
    count: int,
    retry_uncertain: bool,
    answer: str,
    error: type[nsq.NsqError] | None,
    closed: bool,
    failed: int,
) -> None:
    with producer(transport, coalesce=True, retry_uncertain=retry_uncertain) as p:
        nsqd = connected(p, transport)
        futures = send_joined(p, nsqd, *BODIES[:count])
        nsqd.refuse(answer)
        if error is not None:
            assert errors(futures) == [error] * count
            assert len({id(each.exception()) for each in futures}) == count  # none shares a traceback
        if closed:
            nsqd.peer.wait_closed()
            nsqd = accept_publisher(transport)
        if error is None:  # each by itself now
            for body in BODIES[:count]:
                nsqd.expect(body)
            for _ in futures:
                nsqd.ok()
            assert errors(futures) == [type(None)] * count
        again = publishing(p, b"next")
        nsqd.answer(b"next")
        again.result(PATIENCE)
        assert p.health().healthy
        assert p.stats().failed == failed


def test_after_a_batch_was_stored_in_part_nothing_is_joined_until_an_ok(transport: MemoryTransport) -> None:
    with producer(transport, coalesce=True) as p:
        nsqd = connected(p, transport)
        futures = send_joined(p, nsqd, *BODIES)
        nsqd.refuse("E_MPUB_FAILED")
        assert errors(futures) == [nsq.PublishUncertain] * 3
        nsqd = accept_publisher(transport)
        send_joined(p, nsqd, b"stuck was the first OK")  # of this connection
        nsqd.ok()
        send_joined(p, nsqd, *BODIES)
        nsqd.ok()


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(("answer", "told", "maybe_stored"), MPUB_REFUSALS)
def test_a_refused_mpub_of_which_nothing_is_stored_is_sent_again(
    transport: MemoryTransport, joined: bool, answer: str, told: dict[str, bool], maybe_stored: bool
) -> None:
    mpub, pubs = commands.mpub("orders", BODIES), [commands.pub("orders", body) for body in BODIES]
    with producer(transport, coalesce=True) as p:
        nsqd = connected(p, transport, **told)
        if joined:
            futures = send_joined(p, nsqd, *BODIES)
        else:
            futures = [in_thread(partial(p.multi_publish, "orders", BODIES))]
            nsqd.peer.expect(mpub)
        nsqd.refuse(answer)
        if maybe_stored:
            assert all(future.exception(PATIENCE).maybe_stored for future in futures)
            return
        nsqd = accept_publisher(transport)
        for command in pubs if joined else [mpub]:
            nsqd.peer.expect(command)
            nsqd.ok()
        assert errors(futures) == [type(None)] * len(futures)


def test_an_nsqd_that_drains_gets_no_publishes(
    transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    with producer(transport) as p:
        published = publishing(p, b"body")
        for _ in range(2):
            nsqd = accept_publisher(transport, draining=True)
            nsqd.peer.wait_closed()
            assert b"PUB" not in nsqd.peer.received
        accept_publisher(transport).answer(b"body")
        published.result(PATIENCE)
    assert f"{A} is draining: it takes no publishes and will stop soon" in caplog.text


def test_behind_a_fatal_error_nothing_was_executed(
    p: Producer, transport: MemoryTransport, nsqd: PublishedTo
) -> None:
    futures = send(p, nsqd, *BODIES)
    nsqd.ok()
    nsqd.refuse("E_BAD_TOPIC")
    accept_publisher(transport).answer(b"2")
    assert errors(futures) == [type(None), nsq.BadTopic, type(None)]
    assert p.stats().failed == 1


def test_a_server_that_answers_behind_a_fatal_error_may_have_executed_what_follows(
    p: Producer, nsqd: PublishedTo
) -> None:
    futures = send(p, nsqd, *BODIES)
    nsqd.peer.send(encode_error(b"E_BAD_TOPIC") + encode_response(b"OK"))
    assert errors(futures) == [nsq.BadTopic, type(None), nsq.PublishUncertain]


@pytest.mark.parametrize(
    ("answer", "cause", "text"),
    [
        (encode_response(b"WHAT" * 99), nsq.WireError, "WHATWHAT"),
        (encode_message(1, 1, b"0" * 16, b"body"), nsq.WireError, "RDY was never above 0"),
        (b"\0\0\0\1\0\0\0\7", nsq.WireError, "frame"),
        (b"", nsq.NsqError, "closed the connection"),
        (encode_response(b"OK")[:-1], nsq.NsqError, ""),
    ],
    ids=["another response", "a message", "no frame", "an end", "half of one"],
)
def test_what_is_no_answer_ends_the_connection_and_leaves_each_publish_uncertain(
    p: Producer, nsqd: PublishedTo, answer: bytes, cause: type[nsq.NsqError], text: str
) -> None:
    stored, *futures = send(p, nsqd, *BODIES)
    # What comes behind it could belong to any of them.
    behind = encode_response(b"OK") + encode_error(b"E_PUB_FAILED") if cause is nsq.WireError else b""
    nsqd.ok()
    assert stored.exception(PATIENCE) is None
    nsqd.peer.send(answer + behind)
    if cause is nsq.NsqError:
        nsqd.peer.end()
    assert errors(futures) == [nsq.PublishUncertain] * 2
    nsqd.peer.wait_closed()
    first, second = (future.exception() for future in futures)
    assert first is not second  # callers must not share a traceback
    assert isinstance(first.__cause__, cause)
    assert text in str(first)
    assert len(str(first)) < 300


@pytest.mark.parametrize(("sent", "oks"), [(3, 4), (3, 8), (0, 1)])
def test_an_ok_to_nothing_ends_the_connection(p: Producer, nsqd: PublishedTo, sent: int, oks: int) -> None:
    futures = send(p, nsqd, *BODIES[:sent])
    nsqd.peer.send(encode_response(b"OK") * oks)
    assert errors(futures) == [type(None)] * sent
    nsqd.peer.wait_closed()
    assert "an OK to nothing" in eventually(lambda: p.health().problems)[A]


def test_heartbeats_do_not_stand_for_an_answer(transport: MemoryTransport) -> None:
    with producer(transport, read_timeout=0.3, heartbeat_interval=-1.0) as p:
        published = publishing(p)
        nsqd = accept_publisher(transport)
        nsqd.expect(b"body")
        while not nsqd.peer.closed:
            nsqd.say(HEARTBEAT)
            eventually(lambda: nsqd.peer.closed or not nsqd.peer.unread)
        error = published.exception(PATIENCE)
    assert isinstance(error, nsq.PublishUncertain)
    assert isinstance(error.__cause__, nsq.Unanswered)


@pytest.mark.parametrize("retry_uncertain", [False, True])
def test_what_was_sent_is_uncertain_at_a_loss_and_the_rest_is_sent_elsewhere(
    transport: MemoryTransport, retry_uncertain: bool
) -> None:
    with producer(transport, retry_uncertain=retry_uncertain) as p:
        nsqd = connected(p, transport)
        sent = send(p, nsqd, b"0")
        nsqd.peer.stall(after=1)
        sent.append(p.publish_async("orders", b"1"))
        nsqd.peer.wait_until(lambda got: got.endswith(b"P"))
        waiting = [p.publish_async("orders", body) for body in (b"2", b"3")]
        nsqd.peer.end()
        nsqd = accept_publisher(transport)
        for body in ((b"0", b"1") if retry_uncertain else ()) + (b"2", b"3"):
            nsqd.answer(body)
        assert errors(waiting) == [type(None)] * 2
        assert errors(sent) == [type(None) if retry_uncertain else nsq.PublishUncertain] * 2
        assert (p.stats().published, p.stats().failed) == (5 if retry_uncertain else 3, 2)
        assert all(retry_uncertain or f"sent to {A} and not" in str(each.exception()) for each in sent)


STEPS = ["publish", "publish", "publish", "ok", "bad", "full", "lose"]
#: The answers to one message and to several; empty: an end instead.
ANSWERS = {
    "ok": ("OK", "OK"),
    "bad": ("", "E_BAD_MESSAGE"),
    "full": ("E_PUB_FAILED", "E_MPUB_FAILED"),
    "lose": ("", ""),
}


@pytest.mark.parametrize("coalesce", [True, False])
@given(steps=st.lists(st.sampled_from(STEPS), max_size=20))
def test_everything_is_stored_in_the_order_of_its_publishing_however_often_it_is_sent_again(
    steps: list[str], coalesce: bool
) -> None:
    transport = MemoryTransport()
    with producer(transport, retry_uncertain=True, coalesce=coalesce) as p:
        nsqd: PublishedTo | None = None
        published, stored = 0, list[bytes]()
        for step in [*steps, "publish", *["ok"] * 30]:
            if step == "publish":
                p.publish_async("orders", b"%03d" % published)
                published += 1
            elif len(stored) < published:
                if nsqd is None or nsqd.peer.closed:
                    nsqd = accept_publisher(transport)
                bodies = nsqd.next_publish()
                answer = ANSWERS[step][len(bodies) > 1]
                if answer == "OK":
                    nsqd.ok()
                    stored += bodies
                else:
                    nsqd.refuse(answer) if answer else nsqd.peer.end()
                    nsqd.peer.wait_closed()
        assert stored == [b"%03d" % number for number in range(published)]


# Dialing again


@pytest.mark.parametrize(
    ("oks", "answer", "pause", "reason"),
    [
        # It worked, and then: it was lost, broke the protocol, could store no more,
        (1, "", False, "closed the connection"),
        (1, "WHAT", True, "WHAT"),
        (1, "E_PUB_FAILED", True, "E_PUB_FAILED"),
        # and a caller was at fault.
        (1, "E_BAD_TOPIC", False, ""),
        # It has stored nothing yet.
        (0, "", True, "closed the connection"),
        (0, "E_PUB_FAILED", True, "E_PUB_FAILED"),
        (0, "E_BAD_MESSAGE", False, ""),
    ],
)
def test_an_nsqd_that_worked_is_dialed_again_at_once_and_others_after_a_pause(
    transport: MemoryTransport, oks: int, answer: str, pause: bool, reason: str
) -> None:
    with producer(transport, reconnect_initial=60.0, reconnect_max=60.0) as p:
        future = p.publish_async("orders", b"body")
        nsqd = accept_publisher(transport)
        nsqd.expect(b"body")
        if oks:
            nsqd.ok()
            future.result(PATIENCE)
            future = p.publish_async("orders", b"body")
            nsqd.expect(b"body")
        nsqd.refuse(answer) if answer.startswith("E_") else nsqd.say(answer.encode()) if answer else None
        nsqd.peer.end()
        if answer != "E_PUB_FAILED":
            future.exception(PATIENCE)
            eventually(lambda: connections(p)[A].state == ("paused" if pause else "dialing"))
        assert reason in eventually(lambda: connections(p)[A].reason or (not reason and " "))
        if not pause:
            accept_publisher(transport)
        p.close(0)


def test_of_a_long_pause_a_publish_that_waits_leaves_a_second(transport: MemoryTransport) -> None:
    transport.refuse()
    with producer(transport, reconnect_initial=3600.0, reconnect_max=3600.0) as p:
        published = publishing(p)
        transport.wait_for_dials(1)
        transport.admit()
        accept_publisher(transport).answer(b"body")
        published.result(PATIENCE)


@pytest.mark.parametrize(
    ("error", "bug"), [(None, False), (RuntimeError("proxy misconfigured"), True), (SystemExit(), True)]
)
def test_a_dial_that_fails_for_another_reason_than_before_is_logged_as_a_warning(
    error: BaseException | None, bug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(MemoryTransport):
        def connect(self, address: str, *, timeout: float) -> Any:
            stream = super().connect(address, timeout=timeout)  # raises, when it refuses
            raise error or AssertionError(stream)

    transport = Failing()
    if error is None:
        transport.refuse()
    with caplog.at_level(logging.DEBUG, "nsq.producer"), producer(transport) as p:
        future = p.publish_async("orders", b"body")
        transport.wait_for_dials(4)
        assert repr(error or "connection refused").strip("'") in connections(p)[A].reason
        p.close(0)
    assert isinstance(future.exception(), nsq.PublishFailed)
    assert (f"{A} failed" in caplog.text) is bug
    levels = [each.levelno for each in caplog.records if "no connection to" in each.message]
    assert levels[:3] == [logging.WARNING, logging.DEBUG, logging.DEBUG]


def test_a_loss_is_logged_and_the_end_by_a_close_is_not(
    p: Producer, transport: MemoryTransport, nsqd: PublishedTo, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd.hang_up()
    connected(p, transport)
    p.close()
    assert caplog.text.count(f"the connection to {A} is lost") == 1


# What waiting does not change


def test_a_lasting_refusal_is_raised_by_each_publish_and_names_the_nsqd(transport: MemoryTransport) -> None:
    with producer(transport) as p:
        futures = [p.publish_async("orders", body) for body in (b"0", b"1")]
        accept_publisher(transport, auth_required=True)
        first, second = (future.exception(PATIENCE) for future in futures)
    assert isinstance(first, nsq.AuthFirst)
    assert first is not second  # callers must not share a traceback
    assert first.__notes__ == [f"said by {A}"]


def test_a_lasting_refusal_leaves_a_publish_uncertain_that_may_be_stored(
    transport: MemoryTransport,
) -> None:
    with producer(transport, retry_uncertain=True) as p:
        nsqd = connected(p, transport)
        (future,) = send(p, nsqd, b"body")
        nsqd.hang_up()
        accept_publisher(transport, auth_required=True)
        error = future.exception(PATIENCE)
    assert isinstance(error, nsq.PublishUncertain)
    assert "auth_secret" in str(error)
