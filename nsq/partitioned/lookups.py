"""Asks nsqlookupds which NSQ a cluster runs and, of a partitioned one, who leads which partition.

    /listlookup   a list of nodes, null or nothing: partitioned; 404: the original; else undecided
    /lookup       one topic's settings and the leader of each partition, for readers or writers
    /nodes        the nsqds of an original cluster

``Discovery`` says when each nsqlookupd is asked, and asks all side by side. What they answer goes to the
thread that owns ``Lookups.cluster``, which merges it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, Protocol

from nsq.config import Config
from nsq.discovery.directory import Kind
from nsq.discovery.lookups import Asker, Rewrite
from nsq.errors import ApiRefused, NsqError, UsageError
from nsq.http.calls import Misshapen, conform, endpoint, json_value
from nsq.http.message import HttpReply, Url
from nsq.http.nsqlookupd import NsqdNode, NsqlookupdApi, nsqlookupd_address
from nsq.log import Logger
from nsq.partitioned.table import Cluster, ClusterAnswer, Refresh, TopicAnswer
from nsq.partitioned.wire import MAX_PARTITIONS, Meta
from nsq.transport.addresses import join, split

log = Logger("nsq.discovery")

#: Seconds. A node that refuses again sooner says nothing new: the nsqlookupds are asked with growing pauses.
_NEWS = 5.0
_MOST_REFUSED = 10_000

Access = Literal["r", "w"]

#: How an nsqlookupd says that it does not know a topic, or that nothing can be published to it.
_UNKNOWN = ("Key not found", "TOPIC_NOT_FOUND", "Topic has no channel")


class PartitionedLookupdApi(NsqlookupdApi):
    """The HTTP API of one nsqlookupd, with the questions that a partitioned cluster answers."""

    def partitions(self, topic: str, access: Access) -> TopicAnswer:
        """Return a topic's settings and the leaders of its partitions."""
        path = "/lookup" if self._url.target.partition("?")[0] == "/" else ""
        arguments = {"topic": topic, "access": access, "metainfo": "true"}
        try:
            return self._ask("GET", endpoint(self._url, path, arguments), parse_partitions)
        except ApiRefused as refusal:
            if refusal.code.startswith(_UNKNOWN):
                return TopicAnswer(known=False, reason=refusal.code)
            raise


def parse_partitions(reply: HttpReply) -> TopicAnswer:
    data = conform(json_value(reply), dict[str, Any])
    meta = _meta(data.get("meta"))
    leaders = _leaders(conform(data.get("partitions") or {}, dict[str, Any], "partitions"))
    known = bool(leaders) or (meta is not None and meta.partition_num > 0)
    return TopicAnswer(leaders, meta, known, "" if known else "it lists no partition of the topic")


def _meta(value: object) -> Meta | None:
    if value is None:
        return None
    meta = conform(value, dict[str, Any], "meta")
    count, replica = meta.get("partition_num"), meta.get("replica", 1)
    if type(count) is not int or not 0 <= count <= MAX_PARTITIONS:
        raise Misshapen(f"meta.partition_num is {count!r:.100}, not a number from 0 to {MAX_PARTITIONS}")
    return Meta(
        count,
        replica if type(replica) is int else 1,
        ordered=meta.get("ordered") is True,
        extended=meta.get("extend_support") is True,
    )


def _leaders(partitions: Mapping[str, Any]) -> dict[int, str]:
    leaders = {}
    for text, node in partitions.items():
        if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) < MAX_PARTITIONS):
            continue  # an nsqd of the original kind has the partition -1
        try:
            leaders[int(text)] = _tcp_address(node["broadcast_address"], node["tcp_port"])
        except (TypeError, KeyError):
            raise Misshapen(f"partitions.{text} has no broadcast_address and tcp_port") from None
        except UsageError as error:
            _warn(text, str(error))
    return leaders


@lru_cache(maxsize=4096)
def _tcp_address(host: str, port: int) -> str:
    address = join(host, port)
    split(address)
    return address


@lru_cache(maxsize=1000)
def _warn(partition: str, problem: str) -> None:
    log.warning("nsqlookupd has a bad registration: the leader of partition %s: %s", partition, problem)


class Rounds(Protocol):
    """Asks each nsqlookupd in regular rounds, and ahead of time: ``Discovery``."""

    @property
    def given_nsqlookupds(self) -> tuple[str, ...]: ...

    def ask_soon(self, spacing: float = ...) -> None: ...

    def also_ask(self, nsqlookupds: Iterable[str]) -> None: ...


class Lookups(Asker):
    """The questions to nsqlookupds, and the cluster that follows from the answers.

    ``learn`` and ``ask`` are for any thread. One thread owns ``cluster`` and calls the other methods:
    ``tell`` hands it each answer, and ``changed`` is called on it then.
    """

    def __init__(
        self,
        config: Config,
        access: Access,
        *,
        pinned: Kind | None = None,
        rewrite: Rewrite = lambda address: address,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(None, config, clock=clock)
        self.cluster = Cluster(pinned)
        self._access = access
        self._pinned = pinned
        self._rewrite = rewrite
        self._topics: dict[str, None] = {}
        self._ask_first = ""  # the time of the last question did not suffice for this topic
        self._refresh = Refresh(config.lookupd_poll_interval)
        self._listed: dict[str, str] = {}  # nsqlookupds that the cluster lists: how they are asked
        self._refused: dict[tuple[str, int, str], float] = {}  # when nodes last refused to be leaders
        self._unlisted: set[str] = set()  # the nsqlookupds that do not list their cluster now
        self._warned: dict[str, set[str]] = {}  # by nsqlookupd: the topics that it has no answer about
        self._rounds: Rounds | None = None
        self._tell: Callable[[Callable[[], object]], object] = lambda request: request()
        self._changed: Callable[[], object] = lambda: None

    def attach(
        self,
        rounds: Rounds,
        tell: Callable[[Callable[[], object]], object],
        changed: Callable[[], object],
    ) -> None:
        """Set what drives the questions, and the thread that takes the answers."""
        self._rounds, self._tell, self._changed = rounds, tell, changed

    # Any thread.

    def learn(self, topic: str) -> bool:
        """Look this topic up from now on; return whether it is new."""
        if topic in self._topics:
            return False
        self._topics[topic] = None
        return True

    def forget(self, topic: str) -> None:
        """Look this topic up no more."""
        self._topics.pop(topic, None)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._topics.copy())

    def ask(self, lookupd: str) -> frozenset[str]:
        """Ask one nsqlookupd everything; return the addresses of the nsqds that it names, and of the known
        leaders of topics that it has no answer about: they are not gone.
        """
        key, asked_at = key_of(lookupd), self._clock()
        try:
            answer = self._answer(lookupd, asked_at + self._config.lookupd_poll_timeout)
        except NsqError:
            self._tell(partial(self._failed, key))
            raise
        self._tell(partial(self._heard, key, lookupd, answer, asked_at))
        leaders = {node for topic in answer.topics.values() for node in topic.leaders.values()}
        kept = {node for name in answer.problems for node in self.cluster.table(name).leaders.values()}
        return answer.nsqds | leaders | kept

    def _answer(self, lookupd: str, deadline: float) -> ClusterAnswer:
        kind, leader, listed = self._kind(key_of(lookupd), self._api(lookupd, deadline))
        if kind == "original":
            nodes = self.original_nodes(self._api(lookupd, deadline))
            return ClusterAnswer(kind, nsqds=frozenset(node.tcp_address for node in nodes))
        topics, problems = dict[str, TopicAnswer](), dict[str, NsqError]()
        all_topics = self.topics
        first = all_topics.index(self._ask_first) if self._ask_first in all_topics else 0
        for topic in (*all_topics[first:], *all_topics[:first]):
            try:
                topics[topic] = self._api(lookupd, deadline).partitions(topic, self._access)
            except NsqError as error:
                problems[topic] = error
        self._ask_first = next(iter(problems), "")
        if problems and not topics:
            raise next(iter(problems.values()))
        texts = {topic: str(error) for topic, error in problems.items()}
        return ClusterAnswer(kind, listed, leader, topics, problems=texts)

    def original_nodes(self, api: NsqlookupdApi) -> Sequence[NsqdNode]:
        """Return the nsqds to use in a cluster of the original kind."""
        return api.nodes()

    def _kind(self, key: str, api: PartitionedLookupdApi) -> tuple[Kind, str, tuple[str, ...] | None]:
        """Return the kind, and the nsqlookupds with their leader; None if this one cannot list them now."""
        if self._pinned == "original":
            return "original", "", ()
        try:
            listed = api.list_lookupds()
        except ApiRefused as refusal:
            if refusal.status == 404:
                return self._pinned or "original", "", ()
            if refusal.status < 500 or self.cluster.kind != "partitioned":
                raise
            if key not in self._unlisted:  # it has lost etcd, and can still know the leaders
                log.warning("nsqlookupd %s does not list its cluster: %s", key, refusal.code)
            self._unlisted.add(key)
            return "partitioned", "", None
        self._unlisted.discard(key)
        return "partitioned", *(listed or ("", ()))

    def _api(self, lookupd: str, deadline: float) -> PartitionedLookupdApi:
        left, key = self._time_left(lookupd, deadline), key_of(lookupd)
        # Those that only another nsqlookupd has named may not have every secret.
        given = () if self._rounds is None else self._rounds.given_nsqlookupds
        told = key in self._listed and key not in map(key_of, given)
        return PartitionedLookupdApi.of(lookupd, self._config, self._transport, left, told=told)

    # The thread that owns the cluster.

    def _heard(self, key: str, lookupd: str, answer: ClusterAnswer, asked_at: float) -> None:
        listed = None if answer.nsqlookupds is None else tuple(map(self._rewrite, answer.nsqlookupds))
        leader = answer.leader and self._rewrite(answer.leader)
        self.cluster.heard(key, replace(answer, nsqlookupds=listed, leader=leader), asked_at)
        self._warn_of_problems(key, answer.problems)
        self._follow_list(nsqlookupd_address(lookupd))
        self._changed()

    def _warn_of_problems(self, key: str, problems: Mapping[str, str]) -> None:
        """Warn of each topic once, until the nsqlookupd has answered about all; in one line, as there may be
        thousands.
        """
        if not problems:
            self._warned.pop(key, None)
            return
        warned = self._warned.setdefault(key, set())
        new = problems.keys() - warned
        if new:
            warned |= new
            topic = min(new)
            more = f" and {len(new) - 1} more" * (len(new) > 1)
            text = "nsqlookupd %s has no answer about the topic %r%s: %s"
            log.warning(text, key, topic, more, problems[topic])

    def _failed(self, key: str) -> None:
        self.cluster.failed(key)
        self._changed()

    def _follow_list(self, like: Url) -> None:
        """Have all nsqlookupds asked that the cluster lists, beside those that the user has given."""
        rounds = self._rounds
        if rounds is None:
            return
        given, listed = set(map(key_of, rounds.given_nsqlookupds)), self.cluster.lookupds()
        before = self._listed
        self._listed = {
            each: before[each] if each in before else _address(each, like) for each in sorted(listed - given)
        }
        rounds.also_ask(filter(None, self._listed.values()))
        self.cluster.keep_only(given | listed)

    def refuse(self, topic: str, partition: int, address: str, now: float) -> float:
        """Note that a node does not lead a partition, and ask the nsqlookupds soon. Return until when it is
        left out, whatever they answer.
        """
        key = topic, partition, address
        if now - self._refused.get(key, -math.inf) > _NEWS:
            self._refresh.hurry()
        self._refused[key] = now
        if len(self._refused) > _MOST_REFUSED:
            self._refused.clear()
        return self.cluster.refuse(topic, partition, address, now)

    def refresh(self, now: float, *, urgent: bool, incomplete: bool) -> float:
        """Ask ahead of the regular rounds if that is due; return when it is due next."""
        due = self._refresh.due_at(urgent=urgent, incomplete=incomplete)
        if due > now or self._rounds is None:
            return due
        self._refresh.asked(now)
        self._rounds.ask_soon(spacing=0.0)
        return self._refresh.due_at(urgent=urgent, incomplete=incomplete)


def _address(lookupd: str, like: Url) -> str:
    """Return how to ask a listed nsqlookupd: as the one that lists it. Empty if that is impossible."""
    _, mark, query = like.target.partition("?")
    text = f"{like.scheme}://{lookupd}/{mark}{query}"
    try:
        nsqlookupd_address(text)
    except NsqError as error:
        log.warning("nsqlookupd %s is listed, and cannot be asked: %s", lookupd, error)
        return ""
    return text


def key_of(lookupd: str) -> str:
    """Return host and port of an nsqlookupd's address, by which it is listed; or its whole text."""
    url = nsqlookupd_address(lookupd)
    return url.socket_path or join(url.host, url.port)
