from __future__ import annotations

import io

import hypothesis.strategies as st
import pytest
from hypothesis import given

from nsq.daemons.nsqlookupd.registry import Registry
from nsq.daemons.nsqlookupd.tcp import LookupSession
from nsq.daemons.serve.logs import DaemonLog
from nsq.wire import lookup
from nsq.wire.lookup import LookupReplyParser, PeerInfo

OWN = PeerInfo(broadcast_address="127.0.0.1", hostname="vm", http_port=14161, tcp_port=14160, version="1.3.0")
OWN_REPLY = (
    b'{"broadcast_address":"127.0.0.1","hostname":"vm","http_port":14161,"tcp_port":14160,"version":"1.3.0"}'
)
NSQD = PeerInfo(
    broadcast_address="g1.example",
    hostname="g1",
    http_port=4151,
    tcp_port=4150,
    version="9.9.9",
    topology_zone="z1",
    topology_region="r1",
)


class Conversation:
    """A session and everything it said."""

    def __init__(self) -> None:
        self.registry = Registry(inactive_after=300.0, tombstone_lifetime=45.0)
        self._log = io.StringIO()
        self.session = LookupSession(self.registry, "10.0.0.7:5000", lambda: OWN, DaemonLog(stream=self._log))
        self.say(lookup.MAGIC)

    @property
    def log(self) -> list[str]:
        return self._log.getvalue().splitlines()

    def say(self, data: bytes, now: float = 0.0) -> list[bytes]:
        return LookupReplyParser().feed(self.session.feed(data, now))

    def refused(self, data: bytes) -> bytes:
        (answer,) = self.say(data)
        assert self.session.over
        assert self.say(b"PING\n") == []
        return answer


@pytest.fixture
def fresh() -> Conversation:
    return Conversation()


@pytest.fixture
def nsqd(fresh: Conversation) -> Conversation:
    assert fresh.say(lookup.identify(NSQD)) == [OWN_REPLY]
    return fresh


def test_register_and_unregister(nsqd: Conversation) -> None:
    registry = nsqd.registry
    assert nsqd.say(b"REGISTER orders\nREGISTER orders archive\r\n") == [b"OK", b"OK"]
    assert (registry.topics(), registry.channels("orders")) == (["orders"], ["archive"])
    assert nsqd.say(b"UNREGISTER orders archive\nUNREGISTER never\nUNREGISTER orders\n") == [b"OK"] * 3
    assert registry.producers("orders", 0.0) == []
    assert not nsqd.session.over


def test_ping_keeps_a_node_active(nsqd: Conversation) -> None:
    assert nsqd.say(b"PING\n", now=200.0) == [b"OK"]
    assert len(nsqd.registry.nodes(500.0)) == 1
    assert nsqd.registry.nodes(501.0) == []
    assert nsqd.say(b"PING\n", now=501.0) == [b"OK"]
    assert len(nsqd.registry.nodes(501.0)) == 1


def test_a_lost_nsqd_takes_its_registrations_along(nsqd: Conversation) -> None:
    nsqd.say(b"REGISTER t#ephemeral c\nREGISTER u\n")
    forgetting = nsqd.session.lost()
    assert list(nsqd.session.lost()) == []
    assert (nsqd.registry.producers("u", 0.0), nsqd.registry.nodes(0.0)) == ([], [])  # hidden at once
    assert len(list(forgetting)) >= 3  # steps
    assert nsqd.registry.topics() == ["u"]
    assert nsqd.say(b"REGISTER v\n") == []


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"REGISTER", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER ", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"UNREGISTER b@d", b"E_BAD_TOPIC UNREGISTER topic name 'b@d' is not valid"),
        (b"REGISTER \xff\xfe", b"E_BAD_TOPIC REGISTER topic name '\xff\xfe' is not valid"),
        (b"REGISTER  t", b"E_BAD_TOPIC REGISTER topic name '' is not valid"),
        (b"", b"E_INVALID invalid command "),
        (b"register t", b"E_INVALID invalid command register"),
    ],
)
def test_invalid_commands_are_refused(nsqd: Conversation, line: bytes, answer: bytes) -> None:
    assert nsqd.refused(line + b"\n") == answer
    assert nsqd.log[-1].endswith(f"INFO: client(10.0.0.7:5000): refused: {answer!r}")
    assert nsqd.registry.topics() == []


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b'{"tcp_port": "4150"}', b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"null", b"E_BAD_BODY IDENTIFY missing fields"),
    ],
)
def test_an_invalid_identify_body_is_refused(fresh: Conversation, body: bytes, answer: bytes) -> None:
    assert fresh.refused(b"IDENTIFY\n" + lookup.reply(body)) == answer
    assert fresh.registry.nodes(0.0) == []


def test_answers_before_a_refusal_are_given_too(nsqd: Conversation) -> None:
    answers = nsqd.say(b"PING\nREGISTER t\nFOO\nREGISTER u\n")
    assert answers == [b"OK", b"OK", b"E_INVALID invalid command FOO"]
    assert nsqd.registry.topics() == ["t"]


@given(
    st.lists(
        st.sampled_from(
            [b"PING\n", b"REGISTER t c\n", b"UNREGISTER t\n", lookup.identify(NSQD), b"IDENTIFY\n"]
        )
        | st.binary(max_size=30)
    )
)
def test_random_input_is_answered_or_ends_the_session(chunks: list[bytes]) -> None:
    conversation = Conversation()
    for chunk in chunks:
        answers = conversation.say(chunk)
        assert [answer.startswith(b"E_") for answer in answers[:-1]] == [False] * len(answers[:-1])
        assert conversation.session.over or not (answers and answers[-1].startswith(b"E_"))
    conversation.session.lost()
    assert conversation.registry.nodes(0.0) == []
