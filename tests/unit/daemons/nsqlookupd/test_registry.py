from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsq.daemons.nsqlookupd.registry import Peer, Registry
from nsq.wire.lookup import PeerInfo

INACTIVE, LIFETIME = 300.0, 45.0


def peer(number: int = 1, now: float = 0.0) -> Peer:
    info = PeerInfo(broadcast_address=f"n{number}", http_port=4151, tcp_port=4150, version="1.3.0")
    return Peer(info, f"127.0.0.1:{number}", now)


def registry(*peers: Peer) -> Registry:
    made = Registry(inactive_after=INACTIVE, tombstone_lifetime=LIFETIME)
    for one in peers:
        made.connect(one)
    return made


def forget(registry: Registry, gone: Peer) -> None:
    for _ in registry.disconnect(gone):
        pass


def test_a_silent_peer_is_hidden_until_it_is_heard_from() -> None:
    one, two = peer(1), peer(2, now=1.0)
    made = registry(one, two)
    made.register_topic(one, "t")
    made.register_topic(two, "t")
    assert made.producers("t", INACTIVE) == [one, two]
    assert made.producers("t", INACTIVE + 1) == [two]
    assert made.nodes(INACTIVE + 1) == [two]
    one.last_update = INACTIVE
    assert made.producers("t", INACTIVE + 1) == [one, two]


def test_a_tombstone_hides_a_node_from_one_topic_for_its_lifetime() -> None:
    one, two = peer(1), peer(2)
    made = registry(one, two)
    for topic in ("t", "u"):
        made.register_topic(one, topic)
        made.register_topic(two, topic)
    made.tombstone("t", "n1:4151", 10.0)
    assert made.producers("t", 10.0) == [two]
    assert made.producers("u", 10.0) == [one, two]
    hidden = [(who, topic) for who in (one, two) for topic in "tu" if made.tombstoned(who, topic, 10.0)]
    assert hidden == [(one, "t")]
    assert made.producers("t", 10.0 + LIFETIME - 0.001) == [two]
    assert made.producers("t", 10.0 + LIFETIME) == [one, two]


def test_registering_again_does_not_lift_a_tombstone_but_leaving_does() -> None:
    one = peer()
    made = registry(one)
    made.register_topic(one, "t")
    made.tombstone("t", one.node, 0.0)
    made.register_channel(one, "t", "c")
    assert made.producers("t", 1.0) == []
    made.unregister_topic(one, "t")
    made.register_topic(one, "t")
    assert made.producers("t", 1.0) == [one]


def test_a_registry_can_change_while_a_peer_is_being_removed() -> None:
    one, two = peer(1), peer(2)
    made = registry(one, two)
    for topic in ("t", "u", "v"):
        made.register_channel(one, topic, "c")
    forgetting = made.disconnect(one)
    assert (made.producers("t", 0.0), made.nodes(0.0)) == ([], [two])
    assert one.gone
    next(forgetting)
    made.delete_topic("u")
    made.delete_channel("v", "c")
    made.register_topic(two, "u")
    assert list(forgetting)
    assert (one.channels_by_topic, made.producers("u", 0.0)) == ({}, [two])
    assert set(made.topics()) == {"t", "u", "v"}


NAMES = st.sampled_from(["a", "b#ephemeral"])
NUMBERS = st.sampled_from([1, 2])
Key = tuple[str, ...]


class AgainstAPlainTable(RuleBasedStateMachine):
    """The registry beside a flat set of keys and one of (peer, key), searched through for every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = registry()
        self.peers: dict[int, Peer] = {}
        self.keys: set[Key] = set()
        self.rows: set[tuple[int, Key]] = set()
        self.connect(1)

    def leave(self, number: int, gone: set[Key]) -> None:
        held = {key for who, key in self.rows if who == number} & gone
        self.rows -= {(number, key) for key in held}
        for key in held:
            if key[-1].endswith("#ephemeral") and not any(other == key for _, other in self.rows):
                # A topic that without producers is removed with its channels.
                self.keys -= {other for other in self.keys if other[: len(key)] == key}

    def below(self, topic: str) -> set[Key]:
        return {key for key in self.keys if key[0] == topic}

    @rule(number=NUMBERS)
    def connect(self, number: int) -> None:
        if number not in self.peers:
            self.peers[number] = peer(number)
            self.registry.connect(self.peers[number])

    @rule(number=NUMBERS)
    def disconnect(self, number: int) -> None:
        if number in self.peers:
            forget(self.registry, self.peers.pop(number))
            self.leave(number, set(self.keys))

    @rule(number=NUMBERS, topic=NAMES, channel=st.none() | NAMES)
    def register(self, number: int, topic: str, channel: str | None) -> None:
        if number not in self.peers:
            return
        keys: set[Key] = {(topic,)}
        if channel is None:
            self.registry.register_topic(self.peers[number], topic)
        else:
            self.registry.register_channel(self.peers[number], topic, channel)
            keys.add((topic, channel))
        self.keys |= keys
        self.rows |= {(number, key) for key in keys}

    @rule(number=NUMBERS, topic=NAMES, channel=st.none() | NAMES)
    def unregister(self, number: int, topic: str, channel: str | None) -> None:
        if number not in self.peers:
            return
        if channel is None:
            self.registry.unregister_topic(self.peers[number], topic)
            self.leave(number, self.below(topic))
        else:
            self.registry.unregister_channel(self.peers[number], topic, channel)
            self.leave(number, {(topic, channel)})

    @rule(topic=NAMES, channel=st.none() | NAMES)
    def create(self, topic: str, channel: str | None) -> None:
        self.keys.add((topic,))
        if channel is None:
            self.registry.create_topic(topic)
        else:
            self.registry.create_channel(topic, channel)
            self.keys.add((topic, channel))

    @rule(topic=NAMES, channel=st.none() | NAMES)
    def delete(self, topic: str, channel: str | None) -> None:
        if channel is None:
            self.registry.delete_topic(topic)
            gone = self.below(topic)
        else:
            assert self.registry.delete_channel(topic, channel) is ((topic, channel) in self.keys)
            gone = {(topic, channel)}
        self.keys -= gone
        self.rows = {(who, key) for who, key in self.rows if key not in gone}

    @invariant()
    def both_tell_the_same(self) -> None:
        assert sorted(self.registry.topics()) == sorted(key[0] for key in self.keys if len(key) == 1)
        for topic in self.registry.topics():
            channels = [key[1] for key in self.below(topic) if len(key) == 2]
            assert sorted(self.registry.channels(topic)) == sorted(channels)
            producers = {who for who, key in self.rows if key == (topic,)}
            assert set(self.registry.producers(topic, 0.0) or []) == {self.peers[who] for who in producers}
        for node in self.registry.nodes(0.0):
            topics = {key[0] for who, key in self.rows if self.peers[who] is node and len(key) == 1}
            assert set(node.channels_by_topic) == topics
        assert set(self.registry.nodes(0.0)) == set(self.peers.values())

    @invariant()
    def every_row_is_shown_once(self) -> None:
        shown = [
            (one, key.split(":", 1)[1].rstrip(":"))
            for key, producers in self.registry.entries()
            for one in producers
            if key != "client::"
        ]
        rows = [(self.peers[who], ":".join(key)) for who, key in self.rows]
        assert len(shown) == len(rows)
        assert set(shown) == set(rows)


TestAgainstAPlainTable = AgainstAPlainTable.TestCase
TestAgainstAPlainTable.settings = settings(stateful_step_count=40)
