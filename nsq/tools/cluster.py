"""A cluster over HTTP: finds its nsqds, reads their topics and channels, and changes all of them.

``nsq topics``, ``channels``, ``create``, ``delete``, ``empty``, ``pause`` and ``unpause``. A change goes to
the nsqlookupds first and then to each nsqd, as in nsqadmin; a failure on one does not stop the others.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import nsq
from nsq.errors import ApiError, ApiRefused, ConfigError, NsqError, UsageError
from nsq.http.asking import ask_all
from nsq.http.cluster import Node, Topic, count_topics, merge_nodes
from nsq.http.message import parse_url
from nsq.http.nsqd import NsqdApi, NsqdStats
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.tables import printable, table
from nsq.tools.program import HttpFlags, check_ranges, flag, repeated, run_command
from nsq.transport.addresses import join
from nsq.transport.tls import context_of
from nsq.wire.identify import PARTITIONED_VERSION
from nsq.wire.names import check_channel, check_topic

T = TypeVar("T")

#: Addresses, separated by commas, for when no flag gives any.
_ENVIRONMENT = "NSQ_ADDRESS"
#: Where to look for an nsqlookupd, and then for an nsqd, when nothing names one.
_USUAL = ("127.0.0.1:4161", "127.0.0.1:4151")


@dataclass(frozen=True, kw_only=True)
class ClusterFlags(HttpFlags):
    address: tuple[str, ...] = repeated(
        str,
        "HTTP address of an nsqlookupd, or of an nsqd (may be given multiple times; default: "
        f"{_ENVIRONMENT} of the environment, else the first that answers of {' and '.join(_USUAL)})",
    )
    lookupd_http_address: tuple[str, ...] = repeated(
        str, "HTTP address of an nsqlookupd (may be given multiple times)"
    )
    nsqd_http_address: tuple[str, ...] = repeated(
        str, "HTTP address of an nsqd (may be given multiple times)"
    )
    http_client_tls_root_ca_file: str = flag(
        "", "path of the CA certificates for verifying HTTPS servers (default: the public CAs)"
    )
    json: bool = flag(False, "write JSON")

    def __post_init__(self) -> None:
        check_ranges(self)
        _ = self.tls  # refuses an invalid file
        if len(given := [flag_name for flag_name, addresses in self._flags() if addresses]) > 1:
            raise ConfigError(f"give {' or '.join(given)}, not both")

    def _flags(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (
            ("--address", self.address),
            ("--lookupd-http-address", self.lookupd_http_address),
            ("--nsqd-http-address", self.nsqd_http_address),
        )

    @property
    def tls(self) -> Any:
        """The context for HTTPS servers; None for that of the public CAs."""
        authorities = self.http_client_tls_root_ca_file
        return context_of(nsq.Config(tls=True, tls_ca_file=authorities)) if authorities else None


class Named(NamedTuple):
    """The HTTP addresses of the nsqlookupds, or else of the nsqds, to begin with; ``source`` is the flag or
    the variable that gave them, empty for the usual ones.
    """

    lookupds: tuple[str, ...]
    nsqds: tuple[str, ...]
    source: str


def named_daemons(options: ClusterFlags) -> Named:
    """Find out which nsqlookupds or nsqds the user means. Raises ApiError if none of them answers."""
    if options.lookupd_http_address:
        return Named(options.lookupd_http_address, (), "--lookupd-http-address")
    if options.nsqd_http_address:
        return Named((), options.nsqd_http_address, "--nsqd-http-address")
    source = "--address" if options.address else _ENVIRONMENT
    in_environment = filter(None, map(str.strip, os.environ.get(_ENVIRONMENT, "").split(",")))
    addresses = options.address or tuple(in_environment)
    if not addresses:
        return _usual_daemon(options)
    answers = ask_all(addresses, lambda address: _is_nsqd(options, address))
    if not answers.found:
        raise ApiError("; ".join(f"{source}: {error}" for error in answers.errors.values()))
    if len(kinds := set(answers.found.values())) > 1:
        raise UsageError(
            f"{source} names nsqlookupds and nsqds: {', '.join(addresses)}; give the nsqlookupds alone"
        )
    # One that does not answer now is asked later, and is then a problem of its own.
    return Named((), addresses, source) if kinds == {True} else Named(addresses, (), source)


def _usual_daemon(options: ClusterFlags) -> Named:
    reasons = []
    for address in _USUAL:
        try:
            is_nsqd = _is_nsqd(options, address)
        except NsqError as error:
            reasons.append(str(error))
        else:
            return Named((), (address,), "") if is_nsqd else Named((address,), (), "")
    raise ApiError(
        f"no nsqlookupd and no nsqd was found: name one with --address=HOST:PORT or {_ENVIRONMENT}, "
        f"or start them with `nsq up` ({'; '.join(reasons)})"
    )


def _is_nsqd(options: ClusterFlags, address: str) -> bool:
    """Whether an nsqd answers there, and not an nsqlookupd: only an nsqd's /info has a TCP port."""
    answered = False
    with suppress(ApiRefused):  # an nsqd that insists on TLS
        answered = bool(options.lookupd_api(address).info())
    try:
        options.nsqd_api(address, told=False).info()
    except ApiError:
        if not answered:
            raise
        return False
    return True


@dataclass(frozen=True)
class Outcome:
    """The outcome of one step on one daemon; ``error`` is empty when it went well."""

    where: str
    error: str = ""


class Cluster:
    """The daemons that the user means. ``problems`` lists the requests that failed."""

    def __init__(self, options: ClusterFlags) -> None:
        self._options = options
        self._named = named_daemons(options)
        self.problems: list[str] = []
        self.lookupds = {each: options.lookupd_api(each) for each in self._named.lookupds}

    @cached_property
    def _nodes(self) -> list[Node]:
        """The nsqds that the nsqlookupds list and that can be reached by what they have registered."""
        nodes = merge_nodes(self._ask(self.lookupds, NsqlookupdApi.nodes))
        self.problems += [node.problem for node in nodes if node.problem]
        return [node for node in nodes if not node.problem]

    @cached_property
    def nsqds(self) -> dict[str, NsqdApi]:
        """The nsqds that the flags name, or all that the nsqlookupds list, by HTTP address."""
        if not self.lookupds:
            return {each: self._options.nsqd_api(each, told=False) for each in self._named.nsqds}
        if not self._nodes and self.problems:
            raise ApiError("; ".join(self.problems))
        addresses = sorted({node.name for node in self._nodes})
        return {each: self._options.nsqd_api(each, told=True) for each in addresses}

    @cached_property
    def tcp_addresses(self) -> list[str]:
        """The TCP addresses of the nsqds, from nsqlookupd, or at the host that was named. ApiError when there
        is none.
        """
        if self.lookupds:
            addresses = sorted({node.info.tcp_address for node in self._nodes})
        else:
            infos = self._ask(self.nsqds, NsqdApi.info)
            addresses = [join(parse_url(address).host, info.tcp_port) for address, info in infos.items()]
        if not addresses:
            raise ApiError(
                "; ".join(self.problems)
                or f"no nsqd is registered with nsqlookupd {', '.join(self.lookupds)}: start nsqd with "
                "--lookupd-tcp-address, or name one with --address"
            )
        return addresses

    @cached_property
    def partitioned(self) -> bool:
        """Whether this is a partitioned NSQ."""
        if self.lookupds:
            return self._leading_lookupd is not None
        infos = ask_all(self.nsqds, lambda address: self.nsqds[address].info())
        return any(PARTITIONED_VERSION in info.version for info in infos.found.values())

    @cached_property
    def _leading_lookupd(self) -> str | None:
        """The nsqlookupd that leads a partitioned NSQ, empty if it is unknown; None for the original NSQ."""
        answers = ask_all(self.lookupds, lambda address: _leader(self.lookupds[address]))
        known = [each for each in answers.found.values() if each is not None]
        return max(known, default=None)

    @property
    def places(self) -> str:
        """The word for what ``having`` returns."""
        return "partitions" if self.partitioned else "nsqds"

    def stats(self, topic: str = "", channel: str = "") -> dict[str, NsqdStats]:
        """Return the statistics of each nsqd that answers."""
        found = self._ask(self.nsqds, lambda nsqd: nsqd.stats(topic, channel, include_clients=False))
        if self.nsqds and not found:
            raise ApiError("; ".join(self.problems))
        return found

    def topics(self) -> list[Topic]:
        """Return all topics, merged; also those that only nsqlookupds know."""
        stats = self.stats()
        known = self._ask(self.lookupds, NsqlookupdApi.topics)
        return count_topics(stats.values(), itertools.chain.from_iterable(known.values()))

    def having(self, topic: str, channel: str = "") -> dict[str, NsqdApi]:
        """Return the nsqds that have a topic, or a channel of it: a partitioned one for each partition."""
        found = {}
        for address, stats in self.stats(topic, channel).items():
            for each in stats["topics"]:
                if channel and not any(one["channel_name"] == channel for one in each["channels"]):
                    continue
                partition = each.get("topic_partition")
                if partition is None:
                    found[address] = self.nsqds[address]
                else:  # every request carries the query of the address
                    with_query = f"{address.rstrip('/')}/?partition={partition}"
                    api = self._options.nsqd_api(with_query, told=bool(self.lookupds))
                    found[f"{address} partition {partition}"] = api
        return found

    def any_lookupd_may_have(self, topic: str, channel: str = "") -> bool:
        """Whether an nsqlookupd knows a topic, or a channel of it, or does not answer."""

        def knows(lookupd: NsqlookupdApi) -> bool:
            return channel in lookupd.channels(topic) if channel else topic in lookupd.topics()

        answers = ask_all(self.lookupds.values(), knows)
        return bool(answers.errors) or any(answers.found.values())

    def _ask(self, daemons: dict[str, Any], question: Callable[[Any], T]) -> dict[str, T]:
        answers = ask_all(daemons, lambda address: question(daemons[address]))
        for address, error in answers.errors.items():
            named = address in (*self._named.lookupds, *self._named.nsqds) and self._named.source
            self.problems.append(f"{named}: {error}" if named else str(error))
        return answers.found

    def change(
        self,
        on_lookupd: Callable[[NsqlookupdApi], None] | None,
        on_nsqd: Callable[[NsqdApi], None],
        nsqds: dict[str, NsqdApi],
    ) -> list[Outcome]:
        outcomes = []
        if on_lookupd is not None:
            outcomes += _outcomes("nsqlookupd", self.lookupds, on_lookupd)
        return outcomes + _outcomes("nsqd", nsqds, on_nsqd)

    def delete_partitioned_topic(self, topic: str) -> list[Outcome]:
        """Have the leading nsqlookupd of a partitioned NSQ delete a topic, on its nsqds too."""
        leaders = [self._leading_lookupd] if self._leading_lookupd else list(self.lookupds)
        apis = {
            each: self._options.lookupd_api(
                f"{each.rstrip('/')}/?partition=**", told=each not in self.lookupds
            )
            for each in leaders
        }
        return _outcomes("nsqlookupd", apis, lambda lookupd: lookupd.delete_topic(topic))


def _leader(lookupd: NsqlookupdApi) -> str | None:
    """Return the leader that an nsqlookupd of a partitioned NSQ names, or an empty text; else None."""
    try:
        listed = lookupd.list_lookupds()
    except ApiRefused as refusal:
        if refusal.status == 404:
            return None
        raise
    return "" if listed is None else listed[0]


def _outcomes(kind: str, daemons: dict[str, Any], step: Callable[[Any], None]) -> list[Outcome]:
    errors = ask_all(daemons, lambda address: step(daemons[address])).errors
    return [Outcome(f"{kind} {address}", str(errors.get(address, ""))) for address in daemons]


def warn_of(problems: Iterable[str]) -> int:
    """Write the problems as warnings; the exit status is 1 if there are any."""
    lines = list(dict.fromkeys(problems))
    for line in lines:
        sys.stderr.write(f"WARNING: {printable(line)}\n")
    return 1 if lines else 0


# Lists


@dataclass(frozen=True, kw_only=True)
class ListOptions(ClusterFlags):
    names: bool = flag(False, "write only the names, one per line")


def main_topics(argv: Sequence[str]) -> int:
    return run_command(ListOptions, argv, "nsq topics", "\nLists the topics of all nsqds.", _topics)


def _topics(options: ListOptions, _: tuple[str, ...]) -> int:
    cluster = Cluster(options)
    topics = cluster.topics()
    partitioned = any(topic.stored_bytes is not None for topic in topics)
    rows = [
        {
            "topic": topic.name,
            **({"stored_bytes": topic.stored_bytes or 0} if partitioned else {"depth": topic.depth}),
            "messages": topic.messages,
            "channels": len(topic.channels),
            "nsqds": topic.nodes,
            "paused": topic.paused,
        }
        for topic in topics
    ]
    return _show(options, rows, cluster, "there are no topics: a publish creates one, or `nsq create TOPIC`")


def main_channels(argv: Sequence[str]) -> int:
    synopsis = "TOPIC\nLists the channels of a topic on all nsqds."
    return run_command(ListOptions, argv, "nsq channels", synopsis, _channels)


def _channels(options: ListOptions, words: tuple[str, ...]) -> int:
    (topic,) = words
    cluster = Cluster(options)
    found = count_topics(cluster.stats(topic).values())
    if not found:
        cluster.problems.append(f"no nsqd has the topic {topic!r}")
    rows = [
        {
            "channel": channel.name,
            "depth": channel.depth,
            "in_flight": channel.in_flight,
            "deferred": channel.deferred,
            "requeued": channel.requeued,
            "timed_out": channel.timed_out,
            "messages": channel.messages,
            "clients": channel.clients,
            "paused": channel.paused,
        }
        for each in found
        for channel in each.channels
    ]
    none = f"topic {topic} has no channels: a consumer creates one, or `nsq create {topic}/CHANNEL`"
    return _show(options, rows, cluster, none if found else "")


def _show(options: ListOptions, rows: list[dict[str, Any]], cluster: Cluster, none: str) -> int:
    """Write the rows; if there are none, write ``none`` to stderr."""
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    elif options.names:
        sys.stdout.write("".join(f"{printable(next(iter(row.values())))}\n" for row in rows))
    elif rows:
        header = [name.upper().replace("_", " ") for name in rows[0]]
        shown = [
            ["yes" if cell is True else "" if cell is False else cell for cell in row.values()]
            for row in rows
        ]
        sys.stdout.write(f"{table(header, shown)}\n")
    elif none:
        sys.stderr.write(f"{printable(none)}\n")
    return warn_of(cluster.problems)


# Changes


@dataclass(frozen=True, kw_only=True)
class ChangeOptions(ClusterFlags):
    pass


@dataclass(frozen=True, kw_only=True)
class ConfirmedOptions(ClusterFlags):
    yes: bool = flag(False, "do not ask for confirmation")


def main_create(argv: Sequence[str]) -> int:
    synopsis = (
        "TOPIC[/CHANNEL]\nCreates a topic, and a channel of it, on the nsqlookupds and on each nsqd that has "
        "the topic;\nif none has it yet, on every nsqd."
    )
    return run_command(ChangeOptions, argv, "nsq create", synopsis, _create)


def _create(options: ChangeOptions, words: tuple[str, ...]) -> int:
    topic, channel = topic_and_channel(words[0], check=True)
    cluster = Cluster(options)
    if cluster.partitioned and not channel:
        raise UsageError(
            "nothing was done: in a partitioned NSQ a topic needs a number of partitions and of replicas: "
            f"POST /topic/create?topic={topic}&partition_num=…&replicator=… to the leading nsqlookupd"
        )
    if cluster.partitioned:  # its nsqlookupds create no channels
        outcomes = cluster.change(
            None, lambda nsqd: nsqd.create_channel(topic, channel), cluster.having(topic)
        )
        return _report(options, "create", words[0], outcomes, cluster)
    nsqds = cluster.nsqds if not cluster.lookupds else cluster.having(topic) or cluster.nsqds

    def create(daemon: NsqlookupdApi | NsqdApi) -> None:
        daemon.create_topic(topic)
        if channel:
            daemon.create_channel(topic, channel)

    return _report(options, "create", words[0], cluster.change(create, create, nsqds), cluster)


def main_delete(argv: Sequence[str]) -> int:
    synopsis = "TOPIC[/CHANNEL]\nDeletes a topic or a channel, with all its messages, everywhere."
    return run_command(ConfirmedOptions, argv, "nsq delete", synopsis, _delete)


def _delete(options: ConfirmedOptions, words: tuple[str, ...]) -> int:
    topic, channel = topic_and_channel(words[0])
    cluster = Cluster(options)
    nsqds = cluster.having(topic, channel)  # before the nsqlookupds forget it
    if not nsqds and not cluster.any_lookupd_may_have(topic, channel):
        return _report(options, "delete", words[0], [], cluster)
    partitioned = cluster.partitioned
    if partitioned and not channel and not cluster.lookupds:
        raise UsageError("nothing was done: nsqlookupd deletes the topics of a partitioned NSQ: name one")
    confirm(options, f"delete {words[0]} and all its messages on {len(nsqds)} {cluster.places}?")
    if partitioned and not channel:
        outcomes = cluster.delete_partitioned_topic(topic)
        return _report(options, "delete", words[0], outcomes, cluster)

    def on_lookupd(lookupd: NsqlookupdApi) -> None:
        if channel:
            _unless_gone(lambda: lookupd.delete_channel(topic, channel))
        else:
            lookupd.delete_topic(topic)

    def on_nsqd(nsqd: NsqdApi) -> None:
        if channel:
            _unless_gone(lambda: nsqd.delete_channel(topic, channel))
        else:
            _unless_gone(lambda: nsqd.delete_topic(topic))

    outcomes = cluster.change(None if partitioned else on_lookupd, on_nsqd, nsqds)
    return _report(options, "delete", words[0], outcomes, cluster)


def _unless_gone(delete: Callable[[], None]) -> None:
    try:
        delete()
    except ApiRefused as error:
        if error.code not in ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND"):
            raise


def main_empty(argv: Sequence[str]) -> int:
    synopsis = (
        "TOPIC[/CHANNEL]\nDeletes the waiting messages of a topic or channel on every nsqd that has it."
    )
    return run_command(ConfirmedOptions, argv, "nsq empty", synopsis, _empty)


def _empty(options: ConfirmedOptions, words: tuple[str, ...]) -> int:
    def ask(where: str) -> None:
        confirm(options, f"delete all waiting messages of {words[0]} on {where}?")

    return _on_nsqds(options, "empty", words[0], NsqdApi.empty_topic, NsqdApi.empty_channel, ask)


def main_pause(argv: Sequence[str]) -> int:
    synopsis = "TOPIC[/CHANNEL]\nStops the delivery of a topic or a channel, on every nsqd that has it."
    return run_command(ChangeOptions, argv, "nsq pause", synopsis, _pause)


def _pause(options: ChangeOptions, words: tuple[str, ...]) -> int:
    return _on_nsqds(options, "pause", words[0], NsqdApi.pause_topic, NsqdApi.pause_channel)


def main_unpause(argv: Sequence[str]) -> int:
    synopsis = "TOPIC[/CHANNEL]\nResumes the delivery of a topic or a channel, on every nsqd that has it."
    return run_command(ChangeOptions, argv, "nsq unpause", synopsis, _unpause)


def _unpause(options: ChangeOptions, words: tuple[str, ...]) -> int:
    return _on_nsqds(options, "unpause", words[0], NsqdApi.unpause_topic, NsqdApi.unpause_channel)


def _on_nsqds(
    options: ClusterFlags,
    action: str,
    target: str,
    on_topic: Callable[[NsqdApi, str], None],
    on_channel: Callable[[NsqdApi, str, str], None],
    ask: Callable[[str], None] | None = None,
) -> int:
    topic, channel = topic_and_channel(target)
    cluster = Cluster(options)
    if not channel and cluster.partitioned:
        raise UsageError(
            f"nothing was done: a partitioned NSQ can {action} channels, not topics: "
            f"nsq {action} {topic}/CHANNEL for each channel of `nsq channels {topic}`"
        )
    nsqds = cluster.having(topic, channel)
    if ask is not None and nsqds:
        ask(f"{len(nsqds)} {cluster.places}")

    def change(nsqd: NsqdApi) -> None:
        if channel:
            on_channel(nsqd, topic, channel)
        else:
            on_topic(nsqd, topic)

    return _report(options, action, target, cluster.change(None, change, nsqds), cluster)


def topic_and_channel(text: str, check: bool = False) -> tuple[str, str]:
    """Split ``TOPIC/CHANNEL``. Without ``check`` it accepts invalid names, so that they can be deleted."""
    topic, slash, channel = text.partition("/")
    if not topic or (slash and not channel):
        raise UsageError(f"{text!r} is not TOPIC or TOPIC/CHANNEL")
    if check:
        check_topic(topic)
        if channel:
            check_channel(channel)
    return topic, channel


def confirm(options: ConfirmedOptions, question: str) -> None:
    """Ask for confirmation; raise UsageError without it."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("nothing was done: without a terminal give --yes to confirm")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was done")


def _report(
    options: ClusterFlags, action: str, target: str, outcomes: list[Outcome], cluster: Cluster
) -> int:
    """Write the outcome of each step."""
    if not outcomes:
        daemons = "no nsqlookupd and no nsqd" if action == "delete" and cluster.lookupds else "no nsqd"
        outcomes = [Outcome("nothing", f"{daemons} has {target}")]
    if options.json:
        steps = [{"where": each.where, "ok": not each.error, "error": each.error} for each in outcomes]
        report = {"action": action, "target": target, "steps": steps, "problems": cluster.problems}
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        for each in outcomes:
            stream = sys.stderr if each.error else sys.stdout
            stream.write(f"{action} {target}: {each.where}: {each.error or 'ok'}\n")
    failed = any(each.error for each in outcomes)
    return max(warn_of(cluster.problems), int(failed))
