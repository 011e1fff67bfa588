"""How much of a topic still waits in the nsqds for one channel, asked of their HTTP API.

Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nsq.config import Config
from nsq.errors import ApiRefused, NsqError
from nsq.http.nsqd import NsqdApi, NsqdStats
from nsq.http.nsqlookupd import NsqlookupdApi, nsqlookupd_address
from nsq.spark.source.options import SourceOptions
from nsq.transport.tls import context_of

_TIMEOUT = 3.0
_TOPIC_NOT_FOUND = "TOPIC_NOT_FOUND"


@dataclass(frozen=True)
class Backlog:
    """The sum over the nsqds that answered, ``asked`` of them; ``faults`` say why others did not.

    ``depth`` is what nobody has yet, ``in_flight`` what some client has and did not finish, ours included,
    ``deferred`` what comes later. ``received`` is how much our own receivers had received by then.
    """

    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    paused: bool = False
    asked: int = 0
    faults: tuple[str, ...] = ()
    received: int = 0

    def unreceived(self, received: int) -> int:
        """What is due and not received yet, now that so much is: answers of nsqds are old when they are used.
        What was published since they were asked is not known.
        """
        return max(0, self.depth + self.in_flight - (received - self.received))

    @property
    def silence(self) -> str:
        """Why nobody has told anything; empty when somebody has, or nobody is known who could."""
        return "" if self.asked else "; ".join(self.faults)

    def waiting(self, with_held: bool) -> int:
        """Messages that are to come; ``with_held``: also those that come only when others give them back."""
        return self.depth + (self.in_flight + self.deferred if with_held else 0)


def measure(options: SourceOptions) -> Backlog:
    """Ask all of them, one after the other; never raises."""
    faults: list[str] = []
    counted = []
    for address in _http_addresses(options, faults):
        try:
            api = NsqdApi(address, timeout=_TIMEOUT, tls=context_of(options.config))
            stats = api.stats(options.topic, include_clients=False)
        except NsqError as error:
            faults.append(str(error))
        else:
            counted.append(counts(stats, options.topic, options.channel))
    return added(counted, faults)


def counts(stats: NsqdStats, topic: str, channel: str) -> Backlog:
    """What one nsqd says."""
    for found in stats["topics"]:
        if found["topic_name"] != topic:
            continue
        # What is still in the topic will be in the channel.
        depth, paused = found["depth"], found["paused"]
        for each in found["channels"]:
            if each["channel_name"] == channel:
                return Backlog(
                    depth=depth + each["depth"],
                    in_flight=each["in_flight_count"],
                    deferred=each["deferred_count"],
                    paused=paused or each["paused"],
                    asked=1,
                )
        # A topic gives what it holds to its first channel, which ours will be, and keeps nothing for others.
        return Backlog(depth=depth, paused=paused, asked=1)
    return Backlog(asked=1)


def added(parts: Iterable[Backlog], faults: Iterable[str] = ()) -> Backlog:
    listed = list(parts)
    return Backlog(
        depth=sum(part.depth for part in listed),
        in_flight=sum(part.in_flight for part in listed),
        deferred=sum(part.deferred for part in listed),
        paused=bool(listed) and all(part.paused for part in listed),
        asked=len(listed),
        faults=tuple(faults),
    )


def next_port(address: str) -> str:
    """``host:4151`` for ``host:4150``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return address  # a host alone has the usual ports
    return f"{host}:{int(port) + 1}"


def _http_addresses(options: SourceOptions, faults: list[str]) -> list[str]:
    found = dict.fromkeys(options.nsqd_http or map(next_port, options.nsqd))
    for lookupd in options.lookupd:
        try:
            found |= dict.fromkeys(_registered(lookupd, options.topic, options.config))
        except NsqError as error:
            faults.append(str(error))
    return list(found)


def _registered(lookupd: str, topic: str, config: Config) -> list[str]:
    encrypted = nsqlookupd_address(lookupd).scheme == "https"
    api = NsqlookupdApi(
        lookupd,
        authorization=config.auth_secret,
        authorize=config.lookupd_authorization,
        timeout=_TIMEOUT,
        tls=context_of(config) if encrypted else None,
    )
    try:
        return [node.http_address for node in api.lookup(topic).producers]
    except ApiRefused as refusal:
        if refusal.code == _TOPIC_NOT_FOUND:
            return []  # nobody has published to it yet
        raise
