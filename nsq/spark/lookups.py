"""Which nsqds and topics there are, as nsqlookupds tell. Imports neither pyspark nor pyarrow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from nsq.config import Config
from nsq.errors import ApiRefused, NsqError
from nsq.http.nsqlookupd import NsqlookupdApi, nsqlookupd_address
from nsq.transport.tls import context_of

log = logging.getLogger("nsq.spark")

T = TypeVar("T")


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


def nodes(api: NsqlookupdApi) -> list[tuple[str, str]]:
    """All nsqds that it lists: their addresses for TCP and HTTP."""
    return [(node.tcp_address, node.http_address) for node in api.nodes()]


def nodes_of(topics: Iterable[str]) -> Callable[[NsqlookupdApi], list[tuple[str, str]]]:
    """Those of them that have one of the topics."""

    def ask(api: NsqlookupdApi) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for topic in topics:
            try:
                found += [(node.tcp_address, node.http_address) for node in api.lookup(topic).producers]
            except ApiRefused as refusal:
                if refusal.code != "TOPIC_NOT_FOUND":  # else: nothing was published to it yet
                    raise
        return found

    return ask
