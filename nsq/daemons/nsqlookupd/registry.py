"""The registration database of nsqlookupd: which nsqd produces which topics and channels.

Pure: time is an argument, in seconds of a clock that never goes back. Knows no socket, protocol or log.
Long work is an iterator of short steps, between which the event loop serves others.

A topic or channel exists from its first registration, or its creation over HTTP, until it is deleted; an
ephemeral one is removed with its last producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from nsq.wire.lookup import PeerInfo
from nsq.wire.names import is_ephemeral


@dataclass(slots=True, eq=False)
class Peer:
    """One connected nsqd with its registrations, so that removing it needs no search through all topics."""

    info: PeerInfo
    remote_address: str
    last_update: float
    channels_by_topic: dict[str, dict[str, None]] = field(default_factory=dict, repr=False)
    gone: bool = False  # disconnected and hidden, while its registrations are being removed

    @property
    def node(self) -> str:
        """The name that tombstones use."""
        return f"{self.info.broadcast_address}:{self.info.http_port}"


# The registrations of one topic or channel, in order of arrival: for each peer the time of its tombstone, or
# None. There may be a million registrations, so they are not objects.
Producers = dict[Peer, float | None]


@dataclass(slots=True)
class _Topic:
    producers: Producers = field(default_factory=dict)
    channels: dict[str, Producers] = field(default_factory=dict)


class Registry:
    """The registrations of nsqds, and the queries and changes of consumers and operators."""

    def __init__(self, *, inactive_after: float, tombstone_lifetime: float) -> None:
        self._inactive_after = inactive_after
        self._tombstone_lifetime = tombstone_lifetime
        self._peers: dict[Peer, None] = {}
        self._topics: dict[str, _Topic] = {}

    # Registration by nsqds

    def connect(self, peer: Peer) -> None:
        self._peers[peer] = None

    def disconnect(self, peer: Peer) -> Iterator[None]:
        """Hide the peer at once; the returned iterator removes its registrations."""
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
        """Register the topic. Registering again changes nothing: a tombstone stays for its lifetime."""
        self._topic(topic).producers.setdefault(peer)
        peer.channels_by_topic.setdefault(topic, {})

    def register_channel(self, peer: Peer, topic: str, channel: str) -> None:
        """Register the channel and its topic."""
        self.register_topic(peer, topic)
        self._topic(topic).channels.setdefault(channel, {}).setdefault(peer)
        peer.channels_by_topic[topic][channel] = None

    def unregister_topic(self, peer: Peer, topic: str) -> None:
        """Remove the peer from the topic and its channels. An unknown topic is no error."""
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

    # Changes by operators

    def create_topic(self, topic: str) -> None:
        self._topic(topic)

    def create_channel(self, topic: str, channel: str) -> None:
        """Create the channel and its topic."""
        self._topic(topic).channels.setdefault(channel, {})

    def delete_topic(self, topic: str) -> None:
        """Remove the topic and its channels of all nsqds. An nsqd that has it may register it again."""
        found = self._topics.pop(topic, None)
        if found is not None:
            for peer in found.producers:
                del peer.channels_by_topic[topic]

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Remove the channel. Returns whether it existed."""
        found = self._topics.get(topic)
        if found is None or channel not in found.channels:
            return False
        for peer in found.channels.pop(channel):
            del peer.channels_by_topic[topic][channel]
        return True

    def tombstone(self, topic: str, node: str, now: float) -> None:
        """Hide the node (broadcast address:HTTP port) from lookups of the topic for a while."""
        producers = self._topics[topic].producers if topic in self._topics else {}
        for peer in producers:
            if peer.node == node:
                producers[peer] = now

    # Queries

    def topics(self) -> list[str]:
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        """Return the channels of a topic; an unknown topic has none."""
        found = self._topics.get(topic)
        return [] if found is None else list(found.channels)

    def producers(self, topic: str, now: float) -> list[Peer] | None:
        """Return the peers of a topic that are active and not tombstoned; None for an unknown topic."""
        found = self._topics.get(topic)
        if found is None:
            return None
        return [
            peer
            for peer, tombstoned_at in found.producers.items()
            if self._active(peer, now) and not self._hidden(tombstoned_at, now)
        ]

    def nodes(self, now: float) -> list[Peer]:
        """Return every active peer, also tombstoned ones."""
        return [peer for peer in self._peers if self._active(peer, now)]

    def tombstoned(self, peer: Peer, topic: str, now: float) -> bool:
        found = self._topics.get(topic)
        return found is not None and self._hidden(found.producers.get(peer), now)

    def entries(self) -> Iterator[tuple[str, Producers]]:
        """Yield all registrations by the keys of /debug: ``topic:orders:``, ``channel:orders:archive``.

        They include peers that are ``gone`` until their registrations are removed.
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
