"""Queries to nsqlookupds, for nsqds and topics, and to nsqds, for stats. Imports neither pyspark nor
pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, TypeVar

from nsq.config import Config
from nsq.errors import NsqError
from nsq.http.nsqd import NsqdApi, NsqdStats
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.http.sending import DEFAULT_TIMEOUT
from nsq.log import Logger
from nsq.transport.tls import context_of

log = Logger("nsq.spark")

T = TypeVar("T")


class Place(NamedTuple):
    """An nsqd's two addresses."""

    tcp: str
    http: str


def stats_of(
    nsqd: str, config: Config, topic: str = "", channel: str = "", timeout: float = DEFAULT_TIMEOUT
) -> NsqdStats:
    """An nsqd's stats for all topics, one topic, or one channel. ``nsqd`` is its HTTP address."""
    api = NsqdApi(nsqd, timeout=timeout, tls=context_of(config))
    return api.stats(topic, channel, include_clients=False)


def ask_all(
    lookupds: Iterable[str], config: Config, question: Callable[[NsqlookupdApi], Iterable[T]]
) -> tuple[list[T], list[NsqError]]:
    """Ask all nsqlookupds; return their distinct answers, and the errors of those that failed."""
    found: dict[T, None] = {}
    faults: list[NsqError] = []
    for address in lookupds:
        try:
            found |= dict.fromkeys(question(NsqlookupdApi.of(address, config)))
        except NsqError as error:
            faults.append(error)
    return list(found), faults


def found_by_any(
    lookupds: tuple[str, ...], config: Config, question: Callable[[NsqlookupdApi], Iterable[T]]
) -> list[T]:
    """Like ``ask_all``, but logs the errors, and raises the first one when no nsqlookupd answers."""
    found, faults = ask_all(lookupds, config, question)
    for fault in faults:
        log.warning("%s", fault)
    if faults and len(faults) == len(lookupds):
        raise faults[0]
    return found


def nodes_of(topics: Collection[str] = ()) -> Callable[[NsqlookupdApi], list[Place]]:
    """Make a question for ``ask_all``: which nsqds have any of these topics; without topics, all nsqds."""

    def ask(api: NsqlookupdApi) -> list[Place]:
        found = [node for topic in topics for node in api.nodes_of(topic)] if topics else api.nodes()
        return [Place(node.tcp_address, node.http_address) for node in found]

    return ask
