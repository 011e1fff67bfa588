"""Asks nsqlookupds for nsqds and topics, and nsqds for statistics, with the options of a read or a stream.
Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from nsq.config import Config
from nsq.errors import NsqError, UsageError
from nsq.http.asking import ask_all
from nsq.http.cluster import Node, merge_lookups, merge_nodes
from nsq.http.nsqd import NsqdApi, NsqdStats
from nsq.http.nsqlookupd import Lookup, NsqlookupdApi
from nsq.http.secret import HttpSecret, verifies
from nsq.http.sending import DEFAULT_TIMEOUT
from nsq.log import Logger
from nsq.spark.options import Options
from nsq.transport.tls import context_of

log = Logger("nsq.spark")


class Place(NamedTuple):
    """An nsqd's two addresses, and whether an nsqlookupd told them."""

    tcp: str
    http: str
    told: bool = True


def places(
    lookupds: Sequence[str], config: Config, topics: Collection[str] = ()
) -> tuple[list[Place], list[NsqError]]:
    """Find the nsqds that have any of these topics; without topics, all nsqds. Also return the errors: of the
    nsqlookupds that failed, and of the nsqds with unusable addresses.
    """
    found: list[Node]
    if topics:

        def lookup(lookupd: str) -> list[Lookup]:
            api = NsqlookupdApi.of(lookupd, config)
            return [Lookup((), api.nodes_of(topic)) for topic in topics]

        looked_up = ask_all(lookupds, lookup)
        found = merge_lookups(itertools.chain(*looked_up.found.values()))
        errors = [*looked_up.errors.values()]
    else:
        listed = ask_all(lookupds, lambda lookupd: NsqlookupdApi.of(lookupd, config).nodes())
        found = merge_nodes(listed.found)
        errors = [*listed.errors.values()]
    unusable: list[NsqError] = [UsageError(node.problem) for node in found if node.problem]
    usable = [Place(node.info.tcp_address, node.name) for node in found if not node.problem]
    return usable, errors + unusable


def places_or_raise(lookupds: Sequence[str], config: Config, topics: Collection[str] = ()) -> list[Place]:
    """Like ``places``, but logs the errors, and raises the first one when they left no nsqd."""
    found, errors = places(lookupds, config, topics)
    for error in errors:
        log.warning("%s", error)
    if errors and not found:
        raise errors[0]
    return found


def topics(lookupds: Sequence[str], config: Config) -> tuple[list[str], list[NsqError]]:
    """Find all topics; also return the errors of the nsqlookupds that failed."""
    answers = ask_all(lookupds, lambda lookupd: NsqlookupdApi.of(lookupd, config).topics())
    return sorted({*itertools.chain(*answers.found.values())}), [*answers.errors.values()]


def stats_of(
    nsqd: str,
    options: Options,
    topic: str = "",
    channel: str = "",
    timeout: float = DEFAULT_TIMEOUT,
    *,
    told: bool,
) -> NsqdStats:
    """An nsqd's stats for all topics, one topic, or one channel. ``nsqd`` is its HTTP address; ``told`` says
    whether an nsqlookupd told it.
    """
    config = options.config
    tls, secret = context_of(config), None
    if config.http_secret:
        own_authorities = config.tls_ca_file is not None and verifies(tls)
        secret = HttpSecret(config.http_secret, options.http_secret_to, own_authorities)
    api = NsqdApi(nsqd, timeout=timeout, tls=tls, secret=secret or "", told=told)
    return api.stats(topic, channel, include_clients=False)
