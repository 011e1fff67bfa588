"""A client's conversation: commands, answers, messages, heartbeats and the end."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.core.broker import AT_ONCE, Unobserved
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.topic import Topic
from nsq.daemons.nsqd.session.subscription import CLOSING
from nsq.daemons.serve.bodies import STALL_SECONDS
from nsq.wire import commands
from nsq.wire.frames import ErrorReply, RawMessage, Response
from nsq.wire.layers import Deflate
from tests.fakes.session import OK, Client, FakeAuthority, World

UNKNOWN = b"0123456789abcdef"


def consumer(world: World, rdy: int = 0, *, channel: str = "c", **client: Any) -> Client:
    subscribed = world.client(**client)
    subscribed.send(commands.sub("t", channel))
    assert subscribed.frame() == OK
    if rdy:
        subscribed.send(commands.rdy(rdy))
    return subscribed


# Publishing


def test_pubs_in_a_row_are_answered_one_by_one_and_kept_in_order() -> None:
    world = World()
    client = world.client()
    sent = [("t", b"1"), ("t", b"2"), ("u", b"3"), ("t", b"4"), ("t", b"5")]
    client.send(b"".join(commands.pub(topic, body) for topic, body in sent))
    assert client.frames() == [OK] * 5
    assert client.session.pub_counts == {"t": 4, "u": 1}
    assert [message.body for message in world.broker.topic("t").backlog.take(9)] == [b"1", b"2", b"4", b"5"]
    assert world.broker.topic("t").message_count == 4


def test_a_large_mpub_is_published_in_parts_between_other_work() -> None:
    world = World()
    client, other = world.client(), world.client()
    bodies = [b"%d" % number for number in range(2 * AT_ONCE + 1)]
    client.send(commands.mpub("t", bodies))
    client.overtake(commands.pub("t", b"behind them"))
    other.send(commands.pub("t", b"in between"))
    assert client.link.take() == b""
    assert client.frames() == [OK, OK]
    assert other.frames() == [OK]
    stored = [message.body for message in world.broker.topic("t").backlog.take(10_000)]
    assert stored == [*bodies[:AT_ONCE], b"in between", *bodies[AT_ONCE:], b"behind them"]
    assert client.session.pub_counts == {"t": len(bodies) + 1}


@pytest.mark.parametrize(
    "wire", [commands.mpub("t", [b"x"] * 2000), commands.pub("t", b"x") * 2000], ids=["one MPUB", "PUBs"]
)
def test_a_publisher_waits_until_hundreds_of_channels_have_got_its_messages(wire: bytes) -> None:
    world = World()
    topic = world.broker.topic("t")
    channels = [topic.channel(str(number)) for number in range(250)]
    client = world.client()
    client.send(wire)
    deepest = 0
    while world.clock.busy:
        world.clock.step()
        deepest = max(deepest, topic.depth)
    assert deepest < 300
    assert {channel.depth for channel in channels} == {2000}
    assert set(client.frames()) == {OK}


def test_a_drain_lets_an_mpub_that_has_begun_end_and_refuses_later_ones() -> None:
    world = World()
    client = world.client()
    client.send(commands.mpub("t", [b"x"] * (2 * AT_ONCE + 1)))
    world.broker.draining = True
    assert world.broker.unfinished
    client.overtake(commands.mpub("t", [b"x"]))
    assert client.frames() == [OK, ErrorReply(b"E_MPUB_FAILED MPUB failed exiting")]
    assert world.broker.topic("t").message_count == 2 * AT_ONCE + 1
    assert not world.broker.unfinished


def test_a_client_that_leaves_in_the_middle_of_its_mpub_does_not_hold_up_a_drain() -> None:
    world = World()
    client = world.client()
    client.send(commands.mpub("t", [b"x"] * (2 * AT_ONCE)))
    client.drop()
    assert not world.broker.unfinished


@pytest.mark.parametrize("draining", [False, True])
def test_identify_tells_about_drains(draining: bool) -> None:
    world = World()
    world.broker.draining = draining
    client = world.client()
    client.send(commands.identify(b'{"feature_negotiation": true}'))
    frame = client.frame()
    assert isinstance(frame, Response)
    reply = json.loads(frame.data)
    assert (reply["exiting_not_stored"], reply["draining"]) == (True, draining)


def test_dpub_and_req_have_limits_of_their_own() -> None:
    world = World(max_req_timeout=5.0, max_defer_timeout=2.0)
    client = world.client()
    client.send(commands.dpub("t", 2000, b"x"))
    assert client.frames() == [OK]
    client.send(commands.dpub("t", 2001, b"x"))
    assert client.frames() == [ErrorReply(b"E_INVALID DPUB timeout 2001 out of range 0-2000")]


def test_an_nsqd_that_drains_refuses_a_subscription_to_a_new_channel() -> None:
    world = World()
    world.broker.topic("t")
    world.broker.draining = True
    client = world.client()
    client.send(commands.sub("t", "c"))
    assert client.frames() == [ErrorReply(b"E_SUB_FAILED SUB failed exiting")]
    assert world.broker.topics["t"].channels == {}


# Publishes that the disk refuses


def refuse(place: Topic | Channel) -> None:
    """Let its disk refuse all messages."""

    def put(messages: object) -> None:
        raise StorageFailed("disk full")

    place.backlog.put = put  # type: ignore[assignment, method-assign]
    if isinstance(place, Channel):
        place.deferred.add = put  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "command", [commands.pub("t", b"x"), commands.dpub("t", 1000, b"x")], ids=["PUB", "DPUB"]
)
def test_an_error_answers_only_the_command_that_is_not_stored(command: bytes) -> None:
    world = World()
    client = world.client()
    client.send(command * (AT_ONCE + 3))
    refuse(world.broker.topics["t"])
    verb = command.partition(b" ")[0]
    assert client.frames() == [OK] * AT_ONCE + [ErrorReply(b"E_%s_FAILED %s failed disk full" % (verb, verb))]
    assert world.broker.topics["t"].message_count == AT_ONCE
    assert client.link.finished


@pytest.mark.parametrize("verb", ["PUB", "DPUB", "MPUB"])
def test_a_publish_that_one_of_two_channels_refuses_is_not_called_refused(verb: str) -> None:
    """An error of PUB and DPUB says that no consumer gets the message, that of MPUB does not."""
    command = {
        "PUB": commands.pub("t", b"x"),
        "DPUB": commands.dpub("t", 1000, b"x"),
        "MPUB": commands.mpub("t", [b"x"]),
    }[verb]
    world = World()
    topic = world.broker.topic("t")
    channels = [topic.channel(name) for name in ("willing", "full")]
    client, another = world.client(), world.client()
    client.send(commands.pub("u", b"y"))
    refuse(topic.channels["full"])
    client.send(command)
    answers = [OK]
    if verb == "MPUB":
        answers.append(
            ErrorReply(b"E_MPUB_FAILED MPUB failed disk full (channel full; another has the messages)")
        )
    assert (client.frames(), client.link.finished) == (answers, True)
    # The next publish is refused before the other channel has it.
    assert another.refused(command) == b"E_%s_FAILED %s failed disk full" % (verb.encode(), verb.encode())
    assert [channel.depth + channel.deferred_count for channel in channels] == [1, 0]
    assert "channel full; another has" in world.log.getvalue()


def test_a_malformed_command_is_answered_after_those_before_it_and_ends_the_stream() -> None:
    world = World()
    client = world.client()
    client.send(commands.pub("t", b"x"), b"PUB b@d\n\0\0\0\1x", commands.pub("t", b"y"))
    assert client.frames() == [OK, ErrorReply(b'E_BAD_TOPIC PUB topic name "b@d" is not valid')]
    assert client.link.finished
    client.overtake(commands.pub("t", b"z"))
    assert world.broker.topic("t").depth == 1


# Refusals that the recordings of Go's nsqd do not have (tests/golden/tcp.json)


@pytest.mark.parametrize(
    ("wire", "answer"),
    [
        (b"\n", b"E_INVALID invalid command "),
        (b"\xff\xfe\n", b"E_INVALID invalid command \xff\xfe"),
        (b"nop\n", b"E_INVALID invalid command nop"),
        (b"SUB t \xff\n", b'E_BAD_CHANNEL SUB channel name "\\xff" is not valid'),
        (b"REQ " + UNKNOWN + b" 0\n", b"E_INVALID cannot REQ in current state"),
    ],
)
def test_more_commands_are_refused_before_sub(wire: bytes, answer: bytes) -> None:
    assert World().client().refused(wire) == answer


@pytest.mark.parametrize(
    ("wire", "answer"),
    [
        (commands.auth(b"x"), b"E_INVALID cannot AUTH in current state"),
        (b"RDY 2501\n", b"E_INVALID RDY count 2501 out of range 0-2500"),
        (b"RDY 99999999999999999999\n", b"E_INVALID RDY could not parse count 99999999999999999999"),
        (b"FIN short\n", b"E_INVALID invalid message ID"),
        (b"REQ short 0\n", b"E_INVALID invalid message ID"),
        (b"TOUCH short\n", b"E_INVALID invalid message ID"),
    ],
)
def test_more_commands_are_refused_after_sub(wire: bytes, answer: bytes) -> None:
    world = World()
    client = consumer(world)
    assert client.refused(wire) == answer
    assert world.broker.topic("t").channels["c"].subscribers == []


@pytest.mark.parametrize("verb", ["FIN", "REQ", "TOUCH"])
def test_a_failed_answer_does_not_end_the_connection(verb: str) -> None:
    client = consumer(World())
    client.send(b"%s %s%s\n" % (verb.encode(), UNKNOWN, b" 0" if verb == "REQ" else b""), b"NOP\n")
    reason = f"E_{verb}_FAILED {verb} {UNKNOWN.decode()} failed ID not in flight"
    assert client.frames() == [ErrorReply(reason.encode())]
    client.send(commands.pub("t", b"still alive"))
    assert client.frames() == [OK]


# Consuming


def test_rdy_without_a_number_is_one() -> None:
    world = World()
    client = consumer(world)
    world.broker.publish("t", [b"a", b"b"])
    client.send(b"RDY\n")
    assert [message.body for message in client.messages()] == [b"a"]


def test_a_message_is_delivered_requeued_touched_and_finished() -> None:
    world = World()
    client = world.client()
    client.identify(msg_timeout=1000)
    client.send(commands.pub("t", b"one"), commands.sub("t", "c"), commands.rdy(1))
    ok, subscribed, first = client.frames()
    assert (ok, subscribed) == (OK, OK)
    assert isinstance(first, RawMessage)
    assert (first.attempts, first.body) == (1, b"one")
    client.send(commands.touch(first.id), commands.req(first.id, 0))
    assert [message.attempts for message in client.messages()] == [2]
    world.clock.advance(1.0)
    assert [message.attempts for message in client.messages()] == [3]
    client.send(commands.req(first.id, 999_999_999))
    assert client.frames() == []
    world.clock._now += 3599.0 - 0.001  # heartbeats are not the point here
    client.session._liveness.stop()
    world.clock.advance(0.0)
    assert client.frames() == []
    world.clock.advance(1.001)
    (last,) = client.messages()
    assert (last.attempts, last.id, last.timestamp) == (4, first.id, first.timestamp)
    client.send(commands.fin(last.id), commands.fin(last.id))
    assert client.frames() == [
        ErrorReply(b"E_FIN_FAILED FIN " + last.id + b" failed ID not in flight"),
    ]


def test_a_number_without_a_digit_is_zero() -> None:
    world = World()
    client = consumer(world, 1)
    client.send(b"DPUB t \n\0\0\0\1a")
    ok, message = client.frames()
    assert (ok, isinstance(message, RawMessage)) == (OK, True)
    client.send(b"RDY \n", b"REQ " + message.id + b" \n")  # type: ignore[union-attr]
    assert client.frames() == []
    channel = world.broker.topic("t").channels["c"]
    assert (channel.depth, channel.deferred_count, client.session.subscriber.rdy) == (1, 0, 0)  # type: ignore[union-attr]


def test_messages_of_one_round_leave_in_one_write() -> None:
    world = World()
    client = consumer(world, 100)
    world.broker.publish("t", [b"x"] * 50)
    world.clock.run_due()
    assert len(client.link.written) == 1
    assert len(client.messages()) == 50


def test_cls_stops_deliveries_and_lets_what_is_in_flight_be_answered() -> None:
    world = World()
    client = consumer(world, 1)
    world.broker.publish("t", [b"a", b"b"])
    (message,) = client.messages()
    client.send(commands.CLS)
    assert client.frames() == [Response(b"CLOSE_WAIT")]
    assert client.session.state == CLOSING
    assert client.session.subscriber is not None
    assert client.session.subscriber.rdy == 0
    client.send(commands.rdy(5), commands.touch(message.id), commands.fin(message.id))
    assert client.frames() == []
    assert world.broker.topic("t").channels["c"].depth == 1
    assert client.refused(commands.CLS) == b"E_INVALID cannot CLS in current state"


def test_sub_is_refused_without_heartbeats() -> None:
    client = World().client()
    client.identify(heartbeat_interval=-1)
    assert client.refused(commands.sub("t", "c")) == b"E_INVALID cannot SUB with heartbeats disabled"


# A channel that goes away


def test_an_ephemeral_channel_goes_with_its_client_whatever_ends_it() -> None:
    for end in (Client.drop, lambda client: client.session.close(), lambda client: client.refused(b"\n")):
        world = World()
        client = world.client()
        client.send(commands.sub("t#ephemeral", "c#ephemeral"))
        assert client.frames() == [OK]
        end(client)
        assert world.broker.topics == {}


def test_nsqd_parting_with_a_client_lets_it_read_everything() -> None:
    world = World()
    client = world.client()
    client.send(commands.pub("t", b"x"))
    client.session.close()
    client.session.close()
    assert client.frames() == [OK]
    assert client.link.finished
    world.clock.advance(1000.0)
    assert world.clock.idle


# Many commands, slow clients, compressed bombs


def test_thousands_of_identifies_in_one_chunk_are_answered() -> None:
    client = World().client()
    body = json.dumps({"feature_negotiation": True, "client_id": "last"}).encode()
    client.send(commands.identify(b"{}") * 8_000, commands.identify(body), commands.pub("t", b"x"))
    *before, last, ok = client.frames()
    assert before == [OK] * 8_000
    assert isinstance(last, Response)
    assert json.loads(last.data)["version"]
    assert ok == OK
    assert client.session.request.client_id == "last"


def test_a_congested_link_gets_no_messages_until_it_is_writable() -> None:
    world = World()
    slow, fast = consumer(world, 2500, capacity=200_000), consumer(world, 2500)
    world.broker.publish("t", [b"x" * 1000] * 2000)
    world.clock.run_due()
    assert slow.link.congested
    held = len(slow.session.subscriber.in_flight)  # type: ignore[union-attr]
    assert 150 < held < 350
    world.broker.publish("t", [b"y"])
    assert len(fast.messages()) + held == 2001
    world.broker.publish("t", [b"z"] * 600)
    fast.send(commands.rdy(0))
    assert len(slow.messages()) == held + 600


def test_a_compressed_chunk_is_executed_in_portions_between_which_others_have_their_turn() -> None:
    world = World()
    bomber, other = world.client(), world.client()
    bomber.upgrade(["deflate"])
    executed: list[int] = []
    bomber.session._handlers[b"NOP"] = lambda params, body: executed.append(1)
    bomber.send(commands.NOP * 300_000)
    assert 0 < len(executed) <= 20_000
    assert not bomber.link.reading
    other.send(commands.pub("t", b"x"))
    assert other.link.written
    world.clock.step()
    assert 20_000 < len(executed) * 2 < 80_000
    world.clock.run_due()
    assert len(executed) == 300_000
    assert bomber.link.reading


def test_a_client_may_be_dropped_between_two_portions() -> None:
    world = World()
    client = world.client()
    client.upgrade(["snappy"])
    client.send(commands.NOP * 1_000_000)
    client.drop()
    world.clock.advance(1000.0)
    assert world.clock.idle


# Who is who


def test_a_client_that_does_not_introduce_itself_is_called_by_its_address() -> None:
    world = World()
    plain, v6, unix = (world.client(address) for address in ("10.0.0.7:5000", "[::1]:5000", "@"))
    assert plain.session.request.client_id == plain.session.request.hostname == "10.0.0.7"
    assert v6.session.request.client_id == "::1"
    assert unix.session.request.client_id == ""


def test_long_names_in_identify_take_little_memory() -> None:
    world = World()
    names = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone", "short_id", "long_id")
    wire = commands.identify(json.dumps(dict.fromkeys(names, "x" * 100_000 + "\N{GHOST}")).encode())
    clients = [world.client() for _ in range(10)]
    tracemalloc.start()
    try:
        for client in clients:
            client.send(wire)
            assert client.frames() == [OK]
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
    assert clients[0].session.request.client_id == "x" * 1024


def test_a_secret_longer_than_64_kib_is_refused() -> None:
    client = World(authority=FakeAuthority()).client()
    assert client.refused(commands.auth(b"s" * 65_537)) == b"E_BAD_BODY AUTH body too big 65537 > 65536"


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"short_id": "s", "long_id": "l.example"}, ("s", "l.example")),
        ({"short_id": "s", "long_id": "l", "client_id": "c", "hostname": "h"}, ("c", "h")),
    ],
)
def test_the_names_of_old_clients(said: dict[str, str], named: tuple[str, str]) -> None:
    client = World().client()
    client.send(commands.identify(json.dumps(said).encode()))
    assert (client.session.request.client_id, client.session.request.hostname) == named


# Garbage

pieces = st.one_of(
    st.sampled_from(
        [
            commands.NOP,
            commands.CLS,
            commands.sub("t", "c"),
            commands.sub("t#ephemeral", "c#ephemeral"),
            commands.rdy(3),
            commands.fin(UNKNOWN),
            commands.req(UNKNOWN, 5),
            commands.pub("t", b"x"),
            commands.mpub("t", [b"x", b"y"]),
            commands.dpub("t", 5, b"x"),
            commands.auth(b"s"),
            commands.identify(b"{}"),
            commands.identify(b'{"feature_negotiation":true,"snappy":true}'),
            commands.identify(b'{"feature_negotiation":true,"deflate":true}'),
            commands.identify(b'{"feature_negotiation":true,"tls_v1":true}'),
            Deflate().wrap(b"NOP\n" * 100),
        ]
    ),
    st.binary(max_size=30),
)


@given(st.lists(pieces, max_size=10), st.integers(1, 60), st.integers(0, 500), st.binary(max_size=3))
def test_garbage_raises_nothing_and_leaves_nothing_behind(
    wire: list[bytes], chunk: int, place: int, damage: bytes
) -> None:
    world = World(tls=True)
    client = world.client(chunk=chunk, capacity=2_000)
    bytes_ = bytearray(b"".join(wire))
    at = place % (len(bytes_) + 1)
    bytes_[at : at + len(damage)] = damage
    client.send_raw(bytes(bytes_))
    while client.link.congested:
        client.link.take()
        client.link.congested = False
        client.session.writable()
    world.clock.advance(100.0)
    assert client.link.finished  # refused, or silent for too long
    client.drop()
    assert all(not c.subscribers for topic in world.broker.topics.values() for c in topic.channels.values())
    # Damage can name a channel that lasts, which keeps its topic.
    topic = world.broker.topics.get("t#ephemeral")
    assert topic is None or topic.channels
    world.broker.close()
    assert world.clock.idle


# A new topic, while nsqlookupd is asked for its channels


class Asking(Unobserved):
    """Starts no topic: its channels on other nsqds are not known."""

    def topic_created(self, topic: Topic) -> None:
        pass


PUBLISHES = pytest.mark.parametrize(
    "publish", [commands.pub("t", b"x"), commands.mpub("t", [b"x"]), commands.dpub("t", 1000, b"x")]
)


@PUBLISHES
def test_a_publish_waits_for_the_channels_of_a_new_topic(publish: bytes) -> None:
    world = World()
    world.broker.observer = Asking()
    client, other = world.client(), world.client()
    client.send(publish, commands.pub("t", b"second"))
    client.overtake(commands.pub("t", b"third"))
    assert client.frames() == []
    other.send(commands.sub("t", "early"))
    assert other.frame() == OK
    topic = world.broker.topic("t")
    channel = topic.channel("archive")
    assert topic.message_count == 0
    topic.start()
    assert client.frames() == [OK] * 3
    world.clock.advance(1.0)
    assert channel.depth == 3
    client.send(commands.pub("t", b"later"))
    assert client.frame() == OK


def test_a_topic_that_is_deleted_before_it_starts_is_made_again() -> None:
    world = World()
    world.broker.observer = Asking()
    client = world.client()
    client.send(commands.pub("t", b"x"))
    first = world.broker.topic("t")
    world.broker.delete_topic("t")
    first.start()
    assert client.frames() == []
    world.broker.topic("t").start()
    assert client.frames() == [OK]


@PUBLISHES
def test_a_client_that_leaves_before_its_topic_starts_has_published_nothing(publish: bytes) -> None:
    world = World()
    world.broker.observer = Asking()
    client = world.client()
    client.send(publish)
    client.drop()
    world.broker.topic("t").start()
    assert world.broker.topic("t").message_count == 0


# The unfinished bodies of all clients together


BODY = commands.mpub("t", [b"x" * 600_000])
SMALL_ROOM = {"max_total_body_size": 1_000_000, "max_body_size": 1_000_000}


@pytest.mark.parametrize("ending", ["lost", "refused", "closed"])
def test_the_end_of_a_client_makes_room(ending: str) -> None:
    world = World(**SMALL_ROOM)
    first, second = world.client(), world.client()
    for client in (first, second):
        client.send(BODY[:-1])
    if ending == "lost":
        first.drop()
    elif ending == "closed":
        first.session.close()
    else:
        first.session.cut_off()
        assert first.link.finished
    assert second.link.reading


def test_a_client_that_stalls_in_a_body_is_cut_off_while_others_wait() -> None:
    world = World(**SMALL_ROOM)
    first, second = world.client(), world.client()
    first.identify(heartbeat_interval=-1)
    for client in (first, second):
        client.send(BODY[:-1])
    world.clock.advance(STALL_SECONDS - 1)
    assert not first.link.finished
    world.clock.advance(1)
    assert first.link.finished
    assert second.link.reading
    world.clock.advance(STALL_SECONDS)
    second.send(BODY[-1:])
    assert OK in second.frames()
