"""Which nsqds there are, asked of nsqlookupds. Imports no Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from nsq.config import Config
from nsq.errors import ApiError, ApiRefused
from nsq.http.nsqlookupd import NsqdNode, NsqlookupdApi
from nsq.transport.tls import context_of

log = logging.getLogger("nsq.spark")

_TOPIC_NOT_FOUND = "TOPIC_NOT_FOUND"


def all_nodes(lookupds: Iterable[str], config: Config) -> list[NsqdNode]:
    """All nsqds that any of them lists."""
    return _merged(lookupds, config, lambda api: api.nodes())


def nodes_of(topic: str, lookupds: Iterable[str], config: Config) -> list[NsqdNode]:
    """The nsqds that have the topic."""

    def ask(api: NsqlookupdApi) -> Iterable[NsqdNode]:
        try:
            return api.lookup(topic).producers
        except ApiRefused as error:
            if error.code == _TOPIC_NOT_FOUND:
                return ()
            raise

    return _merged(lookupds, config, ask)


def _merged(
    lookupds: Iterable[str], config: Config, ask: Callable[[NsqlookupdApi], Iterable[NsqdNode]]
) -> list[NsqdNode]:
    """What they say together. One that does not answer is logged; raises ApiError when none does."""
    found: dict[str, NsqdNode] = {}
    faults: list[ApiError] = []
    answered = False
    context = context_of(config)
    for address in lookupds:
        api = NsqlookupdApi(
            address,
            authorization=config.auth_secret,
            authorize=config.lookupd_authorization,
            timeout=config.lookupd_poll_timeout,
            tls=context,
        )
        try:
            for node in ask(api):
                found.setdefault(node.tcp_address, node)
            answered = True
        except ApiError as error:
            log.warning("nsqlookupd %s: %s", address, error, extra={"nsqlookupd_address": address})
            faults.append(error)
    if faults and not answered:
        raise faults[0]
    return list(found.values())
