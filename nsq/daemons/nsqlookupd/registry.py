"""The registration database of nsqlookupd: which nsqd produces which topics and channels.

Pure: time is an argument, in seconds of a clock that never goes back. Knows no socket, protocol or log.
What may be long comes as an iterator of short steps, between which everything else goes on.

A topic or channel is there from its first registration, or its creation by hand, until it is deleted; an
ephemeral one goes with its last producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nsq.wire.lookup import PeerInfo
from nsq.wire.names import is_ephemeral


@dataclass(slots=True, eq=False)
class Peer:
    """One connected nsqd. It knows its own registrations: losing it costs no search through everybody's."""

    info: PeerInfo
    remote_address: str
    last_update: float
    channels_by_topic: dict[str, dict[str, None]] = field(default_factory=dict, repr=False)
    gone: bool = False  # and hidden; what it registered is being forgotten

    @property
    def node(self) -> str:
        """The name by which tombstones call it."""
        return f"{self.info.broadcast_address}:{self.info.http_port}"


# The registrations of one topic or channel, in order of arrival: when the peer was tombstoned there, or None.
# There may be a million of them, so none is an object.
Producers = dict[Peer, float | None]


@dataclass(slots=True)
class _Topic:
    producers: Producers = field(default_factory=dict)
    channels: dict[str, Producers] = field(default_factory=dict)


class Registry:
    """The registrations of nsqds, and the answers that consumers and operators get from them."""

    def __init__(self, *, inactive_after: float, tombstone_lifetime: float) -> None:
        self._inactive_after = inactive_after
        self._tombstone_lifetime = tombstone_lifetime
        self._peers: dict[Peer, None] = {}
        self._topics: dict[str, _Topic] = {}

    # What nsqds say

    def connect(self, peer: Peer) -> None:
        self._peers[peer] = None

    def disconnect(self, peer: Peer) -> Iterator[None]:
        """Hide the peer at once, and forget what it registered as the iterator is used up."""
        self._peers.pop(peer, None)
        peer.gone = True
        return self._forget(peer)

    def _forget(self, peer: Peer) -> Iterator[None]:
        for topic in list(peer.channels_by_topic):
            for channel in list(peer.channels_by_topic.get(topic, ())):
                self.unregister_channel(peer, topic, channel)
                yield
            self.unregister_topic(peer, topic)
            yield

    def register_topic(self, peer: Peer, topic: str) -> None:
        """Registering again changes nothing: a tombstone stays until its lifetime is over."""
        self._topic(topic).producers.setdefault(peer)
        peer.channels_by_topic.setdefault(topic, {})

    def register_channel(self, peer: Peer, topic: str, channel: str) -> None:
        """Registers the topic with it."""
        self.register_topic(peer, topic)
        self._topic(topic).channels.setdefault(channel, {}).setdefault(peer)
        peer.channels_by_topic[topic][channel] = None

    def unregister_topic(self, peer: Peer, topic: str) -> None:
        """The topic goes with the peer's channels of it. Unknown ones are no error, here and below."""
        for channel in list(peer.channels_by_topic.get(topic, ())):
            self.unregister_channel(peer, topic, channel)
        if peer.channels_by_topic.pop(topic, None) is None:
            return
        producers = self._topics[topic].producers
        del producers[peer]
        if not producers and is_ephemeral(topic):
            del self._topics[topic]

    def unregister_channel(self, peer: Peer, topic: str, channel: str) -> None:
        if channel not in peer.channels_by_topic.get(topic, ()):
            return
        del peer.channels_by_topic[topic][channel]
        channels = self._topics[topic].channels
        del channels[channel][peer]
        if not channels[channel] and is_ephemeral(channel):
            del channels[channel]

    # What operators do

    def create_topic(self, topic: str) -> None:
        self._topic(topic)

    def create_channel(self, topic: str, channel: str) -> None:
        """Creates the topic with it."""
        self._topic(topic).channels.setdefault(channel, {})

    def delete_topic(self, topic: str) -> None:
        """Forget the topic and its channels on all nsqds; one that has it may register it again."""
        found = self._topics.pop(topic, None)
        if found is not None:
            for peer in found.producers:
                del peer.channels_by_topic[topic]

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Whether there was such a channel."""
        found = self._topics.get(topic)
        if found is None or channel not in found.channels:
            return False
        for peer in found.channels.pop(channel):
            del peer.channels_by_topic[topic][channel]
        return True

    def tombstone(self, topic: str, node: str, now: float) -> None:
        """Hide the node (broadcast address:HTTP port) from those who look the topic up, for a while."""
        producers = self._topics[topic].producers if topic in self._topics else {}
        for peer in producers:
            if peer.node == node:
                producers[peer] = now

    # What they are told

    def topics(self) -> list[str]:
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        """Return the channels of a topic; none of an unknown one."""
        found = self._topics.get(topic)
        return [] if found is None else list(found.channels)

    def producers(self, topic: str, now: float) -> list[Peer] | None:
        """The peers to connect to: not the inactive, not the tombstoned. None if there is no such topic."""
        found = self._topics.get(topic)
        if found is None:
            return None
        return [
            peer
            for peer, tombstoned_at in found.producers.items()
            if self._active(peer, now) and not self._hidden(tombstoned_at, now)
        ]

    def nodes(self, now: float) -> list[Peer]:
        """Every active peer; tombstones hide none."""
        return [peer for peer in self._peers if self._active(peer, now)]

    def tombstoned(self, peer: Peer, topic: str, now: float) -> bool:
        found = self._topics.get(topic)
        return found is not None and self._hidden(found.producers.get(peer), now)

    def entries(self) -> Iterator[tuple[str, Producers]]:
        """All there is, under the keys that /debug shows: ``topic:orders:``, ``channel:orders:archive``.

        Among them are peers that are ``gone``, until they are forgotten.
        """
        yield "client::", dict.fromkeys(self._peers)
        for name, topic in list(self._topics.items()):
            yield f"topic:{name}:", topic.producers
            for channel, producers in list(topic.channels.items()):
                yield f"channel:{name}:{channel}", producers

    def _topic(self, name: str) -> _Topic:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = _Topic()
        return found

    def _active(self, peer: Peer, now: float) -> bool:
        return not peer.gone and now - peer.last_update <= self._inactive_after

    def _hidden(self, tombstoned_at: float | None, now: float) -> bool:
        return tombstoned_at is not None and now - tombstoned_at < self._tombstone_lifetime
