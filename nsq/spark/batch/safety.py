"""Where a look can be had without taking anything.

A channel gets a copy of every message, so a temporary one of our own takes nothing away: as long as there is
another channel. A topic without any keeps its messages, and hands them all to the first one there is. If that
were ours, they would be gone with it. Nor do ephemeral channels count: they may leave at any moment, and
messages that the topic would have kept from then on would go to ours alone.

Somebody may still delete the last lasting channel between the question and the look. So it is asked again
when the look has begun, which then ends at once: what was published in those moments can be lost, and the
error says so.

Imports no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from nsq.config import Config
from nsq.errors import ApiError, ConfigError, UsageError
from nsq.http.nsqd import NsqdApi, NsqdStats
from nsq.spark.batch.nodes import nodes_of
from nsq.spark.batch.options import PeekOptions
from nsq.transport import addresses
from nsq.transport.tls import context_of
from nsq.wire.names import is_ephemeral

_LAST_PORT = 65535


class Place(NamedTuple):
    """An nsqd's two addresses."""

    tcp: str
    http: str


#: What an nsqd tells of a topic.
Ask = Callable[[Place, str], NsqdStats]


def places(options: PeekOptions) -> list[Place]:
    """All nsqds in question. Raises ConfigError for one whose HTTP address has to be given."""
    found = [Place(tcp, http) for tcp, http in zip(options.nsqd, options.nsqd_http, strict=False)]
    if not options.nsqd_http:
        found = [_beside(tcp, options.config) for tcp in options.nsqd]
    for node in nodes_of(options.topic, options.lookupd, options.config) if options.lookupd else ():
        found.append(Place(node.tcp_address, node.http_address))
    return list({place.tcp: place for place in found}.values())


def _beside(tcp: str, config: Config) -> Place:
    """The HTTP address as nsqd has it by default, if it is one of the same nsqd."""
    wanted = f"give the address of {tcp}'s HTTP API, where it is asked for its channels: option nsqdHttp"
    if addresses.is_unix(tcp):
        raise ConfigError(wanted)
    host, port = addresses.split(tcp)
    if port == _LAST_PORT:
        raise ConfigError(wanted)
    http = addresses.join(host, port + 1)
    try:
        told = NsqdApi(http, tls=context_of(config)).info().tcp_port
    except ApiError as error:
        raise ConfigError(f"{wanted} ({error})") from None
    if told != port:
        raise ConfigError(f"{wanted} ({http} is that of an nsqd with port {told})")
    return Place(tcp, http)


def asking(config: Config) -> Ask:
    """Of the nsqd itself; over https by the TLS options."""
    context = context_of(config)

    def ask(place: Place, topic: str) -> NsqdStats:
        return NsqdApi(place.http, tls=context).stats(topic, include_clients=False)

    return ask


def safe_places(found: Iterable[Place], topic: str, ask: Ask) -> list[Place]:
    """Those that have the topic; the others are left out, as looking would create it there.

    Raises UsageError when looking would take messages, and when no nsqd has the topic.
    """
    safe = []
    for place in found:
        channels = _channels(ask(place, topic), topic)
        if channels is None:
            continue
        refuse_taking(place, topic, channels)
        safe.append(place)
    if not safe:
        raise UsageError(f"no nsqd has a topic {topic!r}: there is nothing to look at")
    return safe


def _channels(stats: NsqdStats, topic: str) -> list[str] | None:
    """None where there is no such topic."""
    for told in stats["topics"]:
        if told["topic_name"] == topic:
            return [channel["channel_name"] for channel in told["channels"]]
    return None


def refuse_taking(place: Place, topic: str, channels: Iterable[str]) -> None:
    if all(is_ephemeral(name) for name in channels):
        raise UsageError(
            f"topic {topic!r} has no lasting channel on {place.tcp}: a look would take what the topic keeps "
            "for its first one. Create the channel that it is meant for, then look"
        )
