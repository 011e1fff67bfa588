"""Which nsqds and topics there are, as nsqlookupds tell, and what an nsqd tells of itself. Imports neither
pyspark nor pyarrow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from nsq.config import Config
from nsq.errors import ApiRefused, NsqError
from nsq.http.nsqd import NsqdApi, NsqdStats
from nsq.http.nsqlookupd import NsqdNode, NsqlookupdApi, nsqlookupd_address
from nsq.http.sending import DEFAULT_TIMEOUT
from nsq.transport.tls import context_of

log = logging.getLogger("nsq.spark")

T = TypeVar("T")


class Place(NamedTuple):
    """An nsqd's two addresses."""

    tcp: str
    http: str


def stats_of(
    nsqd: str, config: Config, topic: str = "", channel: str = "", timeout: float = DEFAULT_TIMEOUT
) -> NsqdStats:
    """What an nsqd tells of all topics, of one, or of one channel. ``nsqd`` is where it answers HTTP."""
    api = NsqdApi(nsqd, timeout=timeout, tls=context_of(config))
    return api.stats(topic, channel, include_clients=False)


def ask_all(
    lookupds: Iterable[str], config: Config, question: Callable[[NsqlookupdApi], Iterable[T]]
) -> tuple[list[T], list[NsqError]]:
    """What they say, together and without repetitions, and why some said nothing."""
    found: dict[T, None] = {}
    faults: list[NsqError] = []
    for address in lookupds:
        encrypted = nsqlookupd_address(address).scheme == "https"
        api = NsqlookupdApi(
            address,
            authorization=config.auth_secret,
            authorize=config.lookupd_authorization,
            timeout=config.lookupd_poll_timeout,
            tls=context_of(config) if encrypted else None,
        )
        try:
            found |= dict.fromkeys(question(api))
        except NsqError as error:
            faults.append(error)
    return list(found), faults


def found_by_any(
    lookupds: tuple[str, ...], config: Config, question: Callable[[NsqlookupdApi], Iterable[T]]
) -> list[T]:
    """The same for those who need an answer: faults are logged, and raised when no nsqlookupd answers."""
    found, faults = ask_all(lookupds, config, question)
    for fault in faults:
        log.warning("%s", fault)
    if faults and len(faults) == len(lookupds):
        raise faults[0]
    return found


def nodes(api: NsqlookupdApi) -> list[Place]:
    """All nsqds that it lists."""
    return _places(api.nodes())


def nodes_of(topics: Iterable[str]) -> Callable[[NsqlookupdApi], list[Place]]:
    """Those of them that have one of the topics."""

    def ask(api: NsqlookupdApi) -> list[Place]:
        found: list[Place] = []
        for topic in topics:
            try:
                found += _places(api.lookup(topic).producers)
            except ApiRefused as refusal:
                if refusal.code != "TOPIC_NOT_FOUND":  # else: nothing was published to it yet
                    raise
        return found

    return ask


def _places(nodes: Iterable[NsqdNode]) -> list[Place]:
    return [Place(node.tcp_address, node.http_address) for node in nodes]
