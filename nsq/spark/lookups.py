"""Which nsqds and topics there are, as nsqlookupds tell, and what an nsqd tells of itself. Imports neither
pyspark nor pyarrow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, TypeVar

from nsq.config import Config
from nsq.errors import NsqError
from nsq.http.nsqd import NsqdApi, NsqdStats
from nsq.http.nsqlookupd import NsqlookupdApi
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
        try:
            found |= dict.fromkeys(question(NsqlookupdApi.of(address, config)))
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


def nodes_of(topics: Collection[str] = ()) -> Callable[[NsqlookupdApi], list[Place]]:
    """Asks for the nsqds that have one of the topics; without topics, for all."""

    def ask(api: NsqlookupdApi) -> list[Place]:
        found = [node for topic in topics for node in api.nodes_of(topic)] if topics else api.nodes()
        return [Place(node.tcp_address, node.http_address) for node in found]

    return ask
