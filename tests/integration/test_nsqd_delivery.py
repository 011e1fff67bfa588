"""Delivery of messages by nsqd from publication to FIN, over real connections."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import Factory, factory
from nsq.testing.v2 import Message
from nsq.wire import commands
from nsq.wire.frames import CLOSE_WAIT, FRAME_MESSAGE, FRAME_RESPONSE
from tests.integration.authority import Authority
from tests.integration.clients import (
    channel_stats,
    connected,
    consumer,
    finish_all,
    publish,
    stats,
    subscribe,
    topic_stats,
)
from tests.integration.judged import LATE, only_ours
from tests.integration.patience import eventually

#: Long enough to be sure that nothing comes, short enough to be waited for often.
NOTHING = 0.15
#: So much may clocks of different resolution differ. Every time is taken before what starts the wait.
EARLY = 0.02
#: Of no message: the answer to its TOUCH tells that all commands before it have been dealt with.
NOBODYS = b"f" * 16


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Nsqd]:
    """An nsqd without options; every test has a topic of its own."""
    with factory(Nsqd) as make:
        yield make()


@pytest.fixture(scope="module")
def hasty() -> Iterator[Nsqd]:
    """An nsqd with timeouts that a test can wait for."""
    with factory(Nsqd) as make:
        yield make(msg_timeout=1.0, max_msg_timeout=3.0, max_req_timeout=1.5)


@pytest.fixture(scope="module")
def program() -> Iterator[Nsqd]:
    """An nsqd as a program, which shares no interpreter with its clients."""
    with factory(Nsqd) as make:
        yield make(process=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Nsqd]:
    """An nsqd with a certificate."""
    with factory(Nsqd) as make:
        yield make(**authority.server_options)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Named after the test."""
    name = "".join(char if char.isalnum() else "_" for char in request.node.name)
    return name.removeprefix("test_")[-60:]


def messages(client: V2Client, count: int) -> list[Message]:
    return [client.expect_message() for _ in range(count)]


def bodies(count: int, prefix: bytes = b"") -> list[bytes]:
    return [prefix + b"%d" % number for number in range(count)]


def in_flight(nsqd: Nsqd, topic: str) -> int:
    channel = channel_stats(nsqd, topic)
    return int(channel["in_flight_count"]) if channel else 0


def until_in_flight(nsqd: Nsqd, topic: str, wanted: int) -> None:
    eventually(lambda: in_flight(nsqd, topic), lambda count: count == wanted)


def dealt_with(client: V2Client, command: bytes) -> tuple[list[Message], bool]:
    """What came again until nsqd had dealt with the command, and whether that came in time for its message.

    Whoever is held up for longer than a message's timeout, as anybody may be on a busy machine, finds it sent
    again.
    """
    client.send(command + commands.touch(NOBODYS))
    again, in_time = [], True
    while NOBODYS not in (frame := client.frame()).data:
        if frame.type == FRAME_MESSAGE:
            again.append(frame.message)
        else:
            assert b"_FAILED " in frame.data
            in_time = False
    return again, in_time


def finish(client: V2Client, message: Message) -> Message:
    """Before it times out; the last of its deliveries."""
    while True:
        again, in_time = dealt_with(client, commands.fin(message.id))
        message = again[-1] if again else message
        if in_time:
            return message
        message = message if again else client.expect_message(timeout=1.0 + LATE)


class TestBalance:
    @only_ours("Go's scheduler may give most of a burst to one client")
    def test_no_client_gets_all_messages_while_others_are_ready(self, nsqd: Nsqd, topic: str) -> None:
        with ExitStack() as stack:
            for number in range(3):
                stack.enter_context(consumer(nsqd, topic, rdy=2500, client_id=str(number)))
            publish(nsqd, topic, bodies(2000))
            until_in_flight(nsqd, topic, 2000)
            channel = channel_stats(nsqd, topic)
            shares = [client["message_count"] for client in channel["clients"]]
        assert sum(shares) == 2000
        assert min(shares) > 200

    def test_single_messages_are_spread_over_the_ready_clients(self, nsqd: Nsqd, topic: str) -> None:
        with ExitStack() as stack:
            for number in range(3):
                stack.enter_context(consumer(nsqd, topic, rdy=100, client_id=str(number)))
            for count in range(1, 91):
                publish(nsqd, topic, [b"x"])
                until_in_flight(nsqd, topic, count)
            channel = channel_stats(nsqd, topic)
            assert min(client["message_count"] for client in channel["clients"]) > 8

    def test_every_channel_gets_every_message(self, nsqd: Nsqd, topic: str) -> None:
        with consumer(nsqd, topic, "a", rdy=5) as a, consumer(nsqd, topic, "b", rdy=5) as b:
            publish(nsqd, topic, bodies(5))
            for client in (a, b):
                assert Counter(each.body for each in messages(client, 5)) == Counter(bodies(5))


class TestRdy:
    def test_rdy_is_a_window_on_messages_in_flight(self, nsqd: Nsqd, topic: str) -> None:
        publish(nsqd, topic, bodies(6))
        with consumer(nsqd, topic, rdy=2) as client:
            first, second = messages(client, 2)
            client.expect_silence(NOTHING)
            finish_all(client, [first])
            third = client.expect_message()
            client.expect_silence(NOTHING)
            client.send(commands.req(second.id, 60_000))
            fourth = client.expect_message()
            client.expect_silence(NOTHING)
            finish_all(client, [third, fourth])
            assert len({each.body for each in [first, second, third, fourth, *messages(client, 2)]}) == 6

    def test_rdy_can_be_set_to_zero_and_back(self, nsqd: Nsqd, topic: str) -> None:
        publish(nsqd, topic, bodies(4))
        with consumer(nsqd, topic, rdy=1) as client:
            first = client.expect_message()
            client.send(commands.rdy(0))
            finish_all(client, [first])
            client.expect_silence(NOTHING)
            client.send(commands.rdy(3))
            messages(client, 3)


class TestTimeouts:
    def test_a_message_without_an_answer_is_delivered_again(self, hasty: Nsqd, topic: str) -> None:
        with consumer(hasty, topic) as client:
            began = time.monotonic()
            publish(hasty, topic, [b"body"])
            first = client.expect_message()
            for attempts in (2, 3):
                again = client.expect_message(timeout=1.0 + LATE)
                assert (again.id, again.body, again.attempts) == (first.id, b"body", attempts)
                assert again.timestamp == first.timestamp
                assert time.monotonic() - began > (attempts - 1) * 1.0 - EARLY
            deliveries = finish(client, again).attempts
            client.expect_silence(NOTHING)
        channel = channel_stats(hasty, topic)
        counts = (channel["timeout_count"], channel["requeue_count"], channel["depth"])
        assert counts == (deliveries - 1, 0, 0)

    def test_an_answer_after_the_timeout_is_refused(self, hasty: Nsqd, topic: str) -> None:
        with consumer(hasty, topic) as slow:
            publish(hasty, topic, [b"body"])
            late = slow.expect_message()
            again, _ = dealt_with(slow, commands.rdy(0))
            late = again[-1] if again else late
            until_in_flight(hasty, topic, 0)
            slow.send(commands.fin(late.id))
            assert late.id in slow.expect_error("E_FIN_FAILED").data
            slow.send(commands.touch(late.id))
            slow.expect_error("E_TOUCH_FAILED")
            slow.send(commands.req(late.id, 0))
            slow.expect_error("E_REQ_FAILED")
            with consumer(hasty, topic) as other:
                once_more = other.expect_message()
                assert (once_more.id, once_more.attempts) == (late.id, late.attempts + 1)
                slow.send(commands.fin(late.id))
                slow.expect_error("E_FIN_FAILED")
                finish(other, once_more)

    def test_a_client_may_request_its_own_message_timeout(self, hasty: Nsqd, topic: str) -> None:
        with consumer(hasty, topic, msg_timeout=1600) as client:
            began = time.monotonic()
            publish(hasty, topic, [b"body"])
            client.expect_message()
            assert client.expect_message(timeout=1.6 + LATE).attempts == 2
            assert time.monotonic() - began > 1.6 - EARLY

    def test_touch_restarts_the_timeout(self, hasty: Nsqd, topic: str) -> None:
        with consumer(hasty, topic) as client:
            publish(hasty, topic, [b"body"])
            message, in_time = client.expect_message(), False
            while not in_time:
                time.sleep(0.25)  # a touch at once would change nothing
                touched = time.monotonic()
                again, in_time = dealt_with(client, commands.touch(message.id))
                message = again[-1] if again else message
                if not in_time and not again:
                    message = client.expect_message(timeout=1.0 + LATE)
            assert client.expect_message(timeout=1.0 + LATE).attempts == message.attempts + 1
            assert time.monotonic() - touched > 1.0 - EARLY

    def test_touch_cannot_exceed_max_msg_timeout(self, hasty: Nsqd, topic: str) -> None:
        with consumer(hasty, topic) as client:
            # Who is held up in touching for longer than the timeout has to begin again.
            elapsed, _ = eventually(
                lambda: touch_until_it_comes_again(hasty, topic, client),
                lambda seen: seen[1] < 0.9,
                within=10 * LATE,
            )
            assert elapsed > 3.0 - EARLY


def touch_until_it_comes_again(nsqd: Nsqd, topic: str, client: V2Client) -> tuple[float, float]:
    """Seconds from publishing a message until then, and the longest between two touches."""
    began = touched = time.monotonic()
    longest = 0.0
    publish(nsqd, topic, [b"body"])
    message = client.expect_message()
    while time.monotonic() - began < 3.0 + LATE:
        client.send(commands.touch(message.id))
        with contextlib.suppress(TimeoutError):
            again = client.expect(FRAME_MESSAGE, timeout=0.1).message
            break
        longest, touched = max(longest, time.monotonic() - touched), time.monotonic()
    elapsed = time.monotonic() - began
    longest = max(longest, time.monotonic() - touched)
    assert again.attempts == 2
    finish(client, again)
    return elapsed, longest


class TestDelays:
    @pytest.mark.parametrize("over", ["TCP", "HTTP"])
    def test_a_deferred_message_comes_when_it_is_due(self, nsqd: Nsqd, topic: str, over: str) -> None:
        def defer(publisher: V2Client, seconds: float) -> None:
            milliseconds = round(seconds * 1000)
            if over == "TCP":
                publisher.send(commands.dpub(topic, milliseconds, b"body"))
                publisher.expect_ok()
            else:
                assert nsqd.post(f"/pub?topic={topic}&defer={milliseconds}", b"body").status == 200

        with consumer(nsqd, topic) as client, connected(nsqd) as publisher:
            defer(publisher, 3600)
            eventually(
                lambda: channel_stats(nsqd, topic),
                lambda found: (found["deferred_count"], found["depth"]) == (1, 0),
            )
            began = time.monotonic()
            defer(publisher, 1.2)
            message = client.expect_message(timeout=1.2 + LATE)
            assert time.monotonic() - began > 1.2 - EARLY
        assert (message.body, message.attempts) == (b"body", 1)

    def test_a_requeued_message_comes_when_it_is_due(self, nsqd: Nsqd, topic: str) -> None:
        with consumer(nsqd, topic, rdy=2) as client:
            publish(nsqd, topic, [b"body"])
            first = client.expect_message()
            began = time.monotonic()
            client.send(commands.req(first.id, 300))
            again = client.expect_message(timeout=0.3 + LATE)
            assert time.monotonic() - began > 0.3 - EARLY
            assert (again.id, again.attempts) == (first.id, 2)
            client.send(commands.req(first.id, 0))
            assert client.expect_message().attempts == 3
        channel = channel_stats(nsqd, topic)
        assert channel["timeout_count"] == 0

    def test_a_requeue_delay_is_cut_to_the_maximum(self, hasty: Nsqd, topic: str) -> None:
        with consumer(hasty, topic) as client:
            publish(hasty, topic, [b"body"])
            message, in_time = client.expect_message(), False
            while not in_time:
                began = time.monotonic()
                again, in_time = dealt_with(client, commands.req(message.id, 3_600_000))
                message = again[-1] if again else message
                if not in_time and not again:
                    message = client.expect_message(timeout=1.0 + LATE)
            assert client.expect_message(timeout=1.5 + LATE).attempts == message.attempts + 1
            assert time.monotonic() - began > 1.5 - EARLY

    def test_a_deferral_beyond_the_maximum_is_refused(self, hasty: Nsqd, topic: str) -> None:
        with connected(hasty) as client:
            client.send(commands.dpub(topic, 1501, b"body"))
            client.expect_error("E_INVALID")
            client.expect_closed()
        reply = hasty.post(f"/pub?topic={topic}&defer=1501", b"body")
        assert (reply.status, reply.json()) == (400, {"message": "INVALID_DEFER"})

    def test_the_message_that_is_due_first_comes_first(self, nsqd: Nsqd, topic: str) -> None:
        with consumer(nsqd, topic, rdy=3) as client, connected(nsqd) as publisher:
            # Together, and a second apart: on a busy machine much could happen between one and the next.
            delays = (3000, 1000, 2000)
            publisher.send(b"".join(commands.dpub(topic, delay, b"%d" % delay) for delay in delays))
            for _ in range(3):
                publisher.expect_ok()
            for body in (b"1000", b"2000", b"3000"):
                message = client.expect_message(timeout=3.0 + LATE)
                assert message.body == body
                finish_all(client, [message])


class TestPause:
    def test_a_paused_channel_keeps_its_messages(self, nsqd: Nsqd, topic: str) -> None:
        with consumer(nsqd, topic, "paused", rdy=5) as client, consumer(nsqd, topic, "other", rdy=5) as other:
            assert nsqd.post(f"/channel/pause?topic={topic}&channel=paused").status == 200
            publish(nsqd, topic, bodies(3))
            messages(other, 3)
            client.expect_silence(NOTHING)
            paused = channel_stats(nsqd, topic, "paused")
            assert (paused["paused"], paused["depth"]) == (True, 3)
            assert nsqd.post(f"/channel/unpause?topic={topic}&channel=paused").status == 200
            assert Counter(each.body for each in messages(client, 3)) == Counter(bodies(3))

    def test_a_paused_topic_keeps_its_messages(self, nsqd: Nsqd, topic: str) -> None:
        with consumer(nsqd, topic, rdy=5) as client:
            assert nsqd.post(f"/topic/pause?topic={topic}").status == 200
            publish(nsqd, topic, bodies(3))
            client.expect_silence(NOTHING)
            paused = topic_stats(nsqd, topic)
            assert (paused["paused"], paused["depth"], paused["channels"][0]["depth"]) == (True, 3, 0)
            assert nsqd.post(f"/topic/unpause?topic={topic}").status == 200
            assert Counter(each.body for each in messages(client, 3)) == Counter(bodies(3))

    def test_messages_in_flight_can_be_answered_during_a_pause(self, nsqd: Nsqd, topic: str) -> None:
        with consumer(nsqd, topic, rdy=2) as client:
            publish(nsqd, topic, bodies(2))
            finished, requeued = messages(client, 2)
            assert nsqd.post(f"/channel/pause?topic={topic}&channel=channel").status == 200
            client.send(commands.fin(finished.id) + commands.req(requeued.id, 0))
            client.expect_silence(NOTHING)
            assert nsqd.post(f"/channel/unpause?topic={topic}&channel=channel").status == 200
            assert client.expect_message().id == requeued.id


class TestSampling:
    def test_a_sample_rate_delivers_about_that_share(self, nsqd_factory: Factory[Nsqd], topic: str) -> None:
        nsqd = nsqd_factory(max_rdy_count=10_000)
        with consumer(nsqd, topic, rdy=10_000, sample_rate=30) as client:
            for _ in range(10):
                publish(nsqd, topic, [b"x"] * 1000)
            channel = eventually(
                lambda: channel_stats(nsqd, topic),
                lambda found: found and found["message_count"] == 10_000 and found["depth"] == 0,
            )
            kept = eventually(lambda: in_flight(nsqd, topic), lambda count: count > 0)
            assert 2500 < kept < 3700
            assert len({message.id for message in messages(client, kept)}) == kept
            client.expect_silence(NOTHING)
        assert channel["clients"][0]["sample_rate"] == 30


class TestConsumers:
    def test_a_consumer_beyond_the_limit_is_refused(self, nsqd_factory: Factory[Nsqd], topic: str) -> None:
        nsqd = nsqd_factory(max_channel_consumers=2)
        with consumer(nsqd, topic, rdy=1), consumer(nsqd, topic, "other"):
            with consumer(nsqd, topic, rdy=0), connected(nsqd) as third:
                third.send(commands.sub(topic, "channel"))
                third.expect_error("E_SUB_FAILED")
                third.expect_closed()
            eventually(lambda: channel_stats(nsqd, topic), lambda found: found and found["client_count"] == 1)
            with consumer(nsqd, topic, rdy=1) as another:
                publish(nsqd, topic, bodies(2))
                another.expect_message()

    @only_ours("Go's nsqd waits for the message's timeout")
    def test_messages_of_a_lost_client_go_to_another_at_once(self, nsqd: Nsqd, topic: str) -> None:
        with consumer(nsqd, topic, rdy=0) as other:
            with consumer(nsqd, topic, rdy=3) as lost:
                publish(nsqd, topic, bodies(3))
                had = {message.id for message in messages(lost, 3)}
            other.send(commands.rdy(3))
            again = messages(other, 3)
            assert ({each.id for each in again}, {each.attempts for each in again}) == (had, {2})
        channel = eventually(lambda: channel_stats(nsqd, topic), lambda found: found and found["depth"] == 3)
        assert (channel["requeue_count"], channel["timeout_count"]) == (6, 0)

    def test_a_client_may_answer_after_cls_and_gets_no_new_message(self, nsqd: Nsqd, topic: str) -> None:
        with consumer(nsqd, topic, rdy=3) as client:
            publish(nsqd, topic, bodies(5))
            finished, requeued, touched = messages(client, 3)
            client.send(commands.CLS)
            client.expect(FRAME_RESPONSE, CLOSE_WAIT)
            client.send(commands.fin(finished.id) + commands.req(requeued.id, 0))
            client.send(commands.touch(touched.id) + commands.fin(touched.id) + commands.rdy(5))
            client.expect_silence(NOTHING)
            channel = eventually(
                lambda: channel_stats(nsqd, topic), lambda found: found and found["depth"] == 3
            )
            assert (channel["in_flight_count"], channel["requeue_count"]) == (0, 1)
            assert channel["clients"][0]["finish_count"] == 2

    @pytest.mark.parametrize("kind", ["channel", "topic"])
    def test_deleting_a_channel_closes_its_consumers_connections(
        self, nsqd: Nsqd, topic: str, kind: str
    ) -> None:
        with (
            consumer(nsqd, topic) as busy,
            consumer(nsqd, topic, rdy=0) as idle,
            connected(nsqd) as bystander,
        ):
            publish(nsqd, topic, bodies(2))
            busy.expect_message()
            query = f"?topic={topic}" + ("&channel=channel" if kind == "channel" else "")
            assert nsqd.post(f"/{kind}/delete{query}").status == 200
            busy.expect_closed()
            idle.expect_closed()
            bystander.send(commands.pub(topic, b"after"))
            bystander.expect_ok()
        with consumer(nsqd, topic) as later:
            assert later.expect_message().body == b"after"

    def test_a_slow_reader_delays_no_other_consumer(self, program: Nsqd, topic: str) -> None:
        total = 800
        patient = {"msg_timeout": 600_000}
        with consumer(program, topic, rdy=2500, client_id="slow", **patient) as slow:
            for _ in range(total // 50):
                publish(program, topic, [b"x" * 65536] * 50)
            with consumer(program, topic, rdy=100, client_id="fast", **patient) as fast:
                left = total - read_all(program, topic, fast, "fast")
            assert 0 < left < total / 2
            finish_all(slow, messages(slow, left))
            until_in_flight(program, topic, 0)
        channel = channel_stats(program, topic)
        assert (channel["depth"], channel["timeout_count"]) == (0, 0)


def read_all(nsqd: Nsqd, topic: str, client: V2Client, client_id: str) -> int:
    """Finish the client's messages until none waits for any client; return their number."""
    read, deadline = 0, time.monotonic() + 100
    while time.monotonic() < deadline:
        channel = channel_stats(nsqd, topic)
        (given,) = (each["message_count"] for each in channel["clients"] if each["client_id"] == client_id)
        if given == read and channel["depth"] == 0:
            return read
        finish_all(client, messages(client, given - read))
        read = given
    raise AssertionError(f"{channel['depth']} messages still wait after {read} were finished")


LAYERS: dict[str, dict[str, bool]] = {
    "plain": {},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "TLS": {"tls_v1": True},
    "snappy over TLS": {"tls_v1": True, "snappy": True},
    "deflate over TLS": {"tls_v1": True, "deflate": True},
}


class TestBodies:
    """Bodies from the smallest to the largest, through every layer."""

    SIZES = (1, 2, 100, 4095, 4096, 65535, 65536, 65537, 300_000, 1024 * 1024)

    @pytest.mark.parametrize("layers", LAYERS)
    @pytest.mark.parametrize("kind", ["noise", "repetition"])
    def test_bodies_arrive_as_they_were_sent(
        self, server: Nsqd, authority: Authority, topic: str, layers: str, kind: str
    ) -> None:
        sent = [
            os.urandom(size) if kind == "noise" else b"nsq" * (size // 3) + b"!" * (size % 3)
            for size in self.SIZES
        ]
        with V2Client(server.tcp_address) as client:
            granted = client.identify(**LAYERS[layers])
            assert all(granted[layer] for layer in LAYERS[layers])
            put_on(client, authority, LAYERS[layers])
            for body in sent:
                client.send(commands.pub(topic, body))
                client.expect_ok()
            subscribe(client, topic, rdy=len(sent))
            received = messages(client, len(sent))
            finish_all(client, received)
            assert Counter(each.body for each in received) == Counter(sent)
            until_in_flight(server, topic, 0)


def put_on(client: V2Client, authority: Authority, layers: Mapping[str, bool]) -> None:
    if "tls_v1" in layers:
        client.start_tls(authority.client_context(), "127.0.0.1")
    if "snappy" in layers:
        client.start_snappy()
    if "deflate" in layers:
        client.start_deflate()


class TestEphemeral:
    def test_an_ephemeral_channel_ends_with_its_last_consumer(self, nsqd: Nsqd, topic: str) -> None:
        with consumer(nsqd, topic, "tail#ephemeral"):
            with consumer(nsqd, topic, "tail#ephemeral"):
                pass
            eventually(
                lambda: channel_stats(nsqd, topic, "tail#ephemeral"),
                lambda found: found and found["client_count"] == 1,
            )
            publish(nsqd, topic, [b"gone with the channel"])
        found = eventually(lambda: topic_stats(nsqd, topic), lambda found: found and not found["channels"])
        assert (found["message_count"], found["depth"]) == (1, 0)

    def test_an_ephemeral_topic_ends_with_its_last_channel(self, nsqd: Nsqd, topic: str) -> None:
        name = f"{topic}#ephemeral"
        publish(nsqd, name, [b"waits for a channel"])
        with consumer(nsqd, name, "tail#ephemeral") as client:
            assert client.expect_message().body == b"waits for a channel"
        eventually(lambda: topic_stats(nsqd, name), lambda found: not found)

    def test_an_ephemeral_topic_with_a_lasting_channel_stays(self, nsqd: Nsqd, topic: str) -> None:
        name = f"{topic}#ephemeral"
        with consumer(nsqd, name, "lasting"), consumer(nsqd, name, "tail#ephemeral"):
            pass
        found = eventually(
            lambda: topic_stats(nsqd, name),
            lambda found: [each["channel_name"] for each in found["channels"]] == ["lasting"],
        )
        assert found["channels"][0]["client_count"] == 0
        assert nsqd.post(f"/channel/delete?topic={topic}%23ephemeral&channel=lasting").status == 200
        eventually(lambda: topic_stats(nsqd, name), lambda found: not found)

    def test_an_ephemeral_channel_keeps_what_fits_into_memory(
        self, nsqd_factory: Factory[Nsqd], topic: str
    ) -> None:
        nsqd = nsqd_factory(mem_queue_size=10)
        publish(nsqd, f"{topic}#ephemeral", bodies(25))
        found = topic_stats(nsqd, f"{topic}#ephemeral")
        assert (found["depth"], found["message_count"]) == (10, 25)
        assert nsqd.post(f"/topic/create?topic={topic}").status == 200
        assert nsqd.post(f"/channel/create?topic={topic}&channel=tail%23ephemeral").status == 200
        publish(nsqd, topic, bodies(25))
        channel = eventually(
            lambda: channel_stats(nsqd, topic, "tail#ephemeral"),
            lambda found: found and found["message_count"] == 25,
        )
        assert channel["depth"] == 10


class TestMany:
    def test_many_topics_are_served(self, program: Nsqd) -> None:
        names = [f"many-{number}" for number in range(2000)]
        with connected(program) as client:
            for start in range(0, len(names), 200):
                chunk = names[start : start + 200]
                client.send(b"".join(commands.pub(name, name.encode()) for name in chunk))
                for _ in chunk:
                    client.expect_ok()
        depths = {each["topic_name"]: each["depth"] for each in stats(program)["topics"]}
        assert all(depths[name] == 1 for name in names)
        for name in names[:: len(names) // 20]:
            with consumer(program, name) as client:
                assert client.expect_message().body == name.encode()

    def test_many_connections_are_served(self, program: Nsqd, topic: str) -> None:
        with ExitStack() as stack:
            clients = [stack.enter_context(consumer(program, topic, rdy=10)) for _ in range(500)]
            found = channel_stats(program, topic)
            assert found["client_count"] == 500
            publish(program, topic, bodies(5000))
            # All of it is in flight before anything is finished: that would make room, and Go's nsqd could
            # give one client what another one waits for.
            held = [messages(client, 10) for client in clients]
            assert Counter(message.body for got in held for message in got) == Counter(bodies(5000))
            for client, got in zip(clients, held, strict=True):
                finish_all(client, got)
            until_in_flight(program, topic, 0)
        eventually(lambda: channel_stats(program, topic), lambda found: found and found["client_count"] == 0)


class TestLatency:
    @pytest.mark.parametrize(
        ("rdy", "identify"),
        [
            pytest.param(1, {}, id="one at a time"),
            pytest.param(100, {"output_buffer_size": -1}, id="unbuffered"),
            pytest.param(
                100, {}, id="as clients are by default", marks=only_ours("Go's nsqd holds output for 250 ms")
            ),
        ],
    )
    def test_an_occasional_message_arrives_at_once(
        self, program: Nsqd, topic: str, rdy: int, identify: dict[str, Any]
    ) -> None:
        took, bare = [], []
        with consumer(program, topic, rdy=rdy, **identify) as client, connected(program) as publisher:
            for body in bodies(100):
                began = time.perf_counter()
                publisher.send(commands.pub("nobody_listens", body))
                publisher.expect_ok()
                bare.append(time.perf_counter() - began)
                began = time.perf_counter()
                publisher.send(commands.pub(topic, body))
                message = client.expect_message()
                took.append(time.perf_counter() - began)
                assert message.body == body
                publisher.expect_ok()
                finish_all(client, [message])
                client.expect_silence(0.002)
        # Held output would arrive anywhere within 250 ms; a busy machine delays many, but not nearly all, and
        # what nobody holds as well.
        quick = statistics.quantiles(bare, n=4)[0]
        assert statistics.quantiles(took, n=4)[0] < 0.030 + 5 * quick
