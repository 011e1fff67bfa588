"""What a publish to a partitioned cluster sends, and what the answers to it mean.

    PartitionRules   of a publish without options: any partition, joined with others of its destination
    Particular       of one with a key, a partition, a trace id, headers, a tag, or several messages

``choose`` names the partition, ``place`` encodes the command for it; ``refused`` and ``lost`` decide by the
table of rules whether it is tried again. The endpoints' threads and callers run these, for publishes that are
theirs at that moment.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from nsq.config import Config
from nsq.errors import (
    BadBody,
    BadMessage,
    ExtNotSupported,
    InvalidMessage,
    NsqError,
    ServerError,
    TopicNotExist,
    Unanswered,
    UsageError,
)
from nsq.partitioned import wire
from nsq.partitioned.keys import Hash, Key, checked_key, partition_for
from nsq.partitioned.snapshots import TopicSnapshot
from nsq.partitioned.table import TopicTable, retry_pause, rule_of
from nsq.partitioned.tracing import Tracing
from nsq.producer.answers import PLAIN, Rules, Verdict, unanswered
from nsq.producer.publishes import Publish, checked_bodies, refused_option
from nsq.wire import commands
from nsq.wire.frames import Published

#: Seconds without an answer after which a node counts as stalled: what it owes is looked up and sent again.
PATIENCE = 3.0
#: So many sends without an answer make a publish look its partition up again.
_LOSSES_BEFORE_LOOKUP = 2


#: The destination of a publish that the pool's thread must place.
UNPLACED = " "


@dataclass(slots=True)
class Tries:
    """What happened to a publish that is tried again."""

    count: int = 0  # tries that were refused
    chances: int = 0  # those of them with an answer that allows few more
    losses: int = 0  # tries without an answer
    not_before: float = -math.inf  # when the same nsqd may be tried again
    address: str = ""  # that nsqd
    lookup_after: float = -math.inf  # only an answer to a later question tells where it goes
    error: ServerError | None = None


NO_TRIES = Tries()


class Host(Protocol):
    """The router, as the rules use it."""

    key_hash: Hash | None
    tracing: Tracing
    now: Callable[[], float]
    chance: Callable[[], float]

    def note_refusal(self, publish: Publish, error: ServerError, address: str) -> None:
        """Have a node left out that does not lead the publish's partition."""

    def note_silence(self, destination: str, address: str) -> None:
        """Have the publishes of a partition kept apart, about which its leader is silent."""

    def log_publish(self, publish: Publish, given: Mapping[str, Any]) -> None:
        """Log a publish that was answered in full."""


class PartitionRules(Rules):
    """The rules of a publish without options, to any partition."""

    keeps_order = False
    """Whether it must be stored behind earlier ones of its partition, in an ordered topic."""
    awaited = False
    """Whether the pool's thread has sent it, and sends the next of its partition afterwards."""
    key: Key | None = None
    partition: int | None = None

    def __init__(self, router: Host) -> None:
        self.router = router

    # Where it goes.

    def choose(self, topic: TopicSnapshot) -> int | None:
        """Return the partition; None: any. Raises UsageError if there is no such partition."""
        return None

    def place(self, publish: Publish, topic: TopicSnapshot, partition: int) -> None:
        """Set what the publish sends."""
        publish.destination = f"{publish.topic} {partition}"

    def place_plainly(self, publish: Publish) -> None:
        """Make it one for the original NSQ, or raise UsageError."""
        publish.rules, publish.destination = PLAIN, publish.topic

    # What an answer means.

    @property
    def mpub_ext(self) -> bool:
        """Whether it leaves as MPUB_EXT."""
        return False

    def refused(
        self, batch: list[Publish], error: ServerError, address: str, *, retry_uncertain: bool, took: float
    ) -> list[Verdict]:
        rule = rule_of(error, took, mpub_ext=self.mpub_ext)
        error.fatal = rule.closes
        if len(batch) > 1 and isinstance(error, (BadMessage, BadBody)):
            # One is at fault: each alone.
            return super().refused(batch, error, address, retry_uncertain=retry_uncertain, took=took)
        if rule.look_up:
            self.router.note_refusal(batch[0], error, address)
        return [self._verdict(publish, error, address, rule.tries, rule.maybe_stored) for publish in batch]

    def _verdict(
        self, publish: Publish, error: ServerError, address: str, tries: float, maybe_stored: bool
    ) -> Verdict:
        if maybe_stored:
            publish.uncertain_at += (address,)
        tried = _tries(publish)
        tried.count += 1
        if tries < math.inf:
            tried.chances += 1
        again = tries == math.inf or tried.chances <= tries
        if again:
            self._pause(publish, tried.count, address)
            tried.error = error
            if isinstance(error, (ExtNotSupported, TopicNotExist)):
                tried.lookup_after = self.router.now()
        if publish.uncertain_at:
            return Verdict(publish, unanswered(publish, address, str(error), error), again)
        return Verdict(publish, copy.copy(error), again)

    def lost(
        self,
        batch: list[Publish],
        cause: NsqError,
        address: str,
        *,
        executed: bool,
        retry_uncertain: bool,
    ) -> list[Verdict]:
        verdicts = []
        for publish in batch:
            error = cause
            if executed:
                publish.uncertain_at += (address,)
                tried = _tries(publish)
                tried.losses += 1
                if tried.losses >= _LOSSES_BEFORE_LOOKUP or isinstance(cause, Unanswered):
                    tried.lookup_after = self.router.now()
                error = unanswered(publish, address, str(cause), cause)
                self._pause(publish, tried.losses, address)
            verdicts.append(Verdict(publish, error, again=True))
        return verdicts

    def note_silence(self, publish: Publish, address: str) -> None:
        self.router.note_silence(publish.destination, address)

    def _pause(self, publish: Publish, failures: int, address: str) -> None:
        """Have the pool's thread place the publish anew: after a pause, or on another nsqd."""
        tried = _tries(publish)
        tried.address = address
        publish.destination = UNPLACED
        tried.not_before = self.router.now() + retry_pause(failures, self.router.chance)

    def dial_at_once(self, error: ServerError) -> bool:
        return rule_of(error).look_up or not error.retry

    def reason(self, publish: Publish, topic: TopicSnapshot, away: str) -> str:
        """Return why no nsqd has taken the publish. ``away``: why nsqds are not connected."""
        try:
            chosen = self.choose(topic)
        except UsageError as error:
            return str(error)
        table, away = topic.table, away or "it is connected"
        if chosen is None:
            why = f"no partition had a leader that could be reached in time; {table.problem or away}"
        elif chosen in table.leaders:
            leader = table.leaders[chosen]
            why = f"partition {chosen} could not be reached in time at its leader {leader}; {away}"
        else:
            why = f"partition {chosen} had no leader in time, as the nsqlookupds have it; {table.problem}"
        return why + said(publish)


def tries_of(publish: Publish) -> Tries:
    """Return what has happened to a publish so far."""
    return NO_TRIES if publish.memory is None else cast("Tries", publish.memory)


def _tries(publish: Publish) -> Tries:
    if publish.memory is None:
        publish.memory = Tries()
    return cast("Tries", publish.memory)


def said(publish: Publish) -> str:
    """Return what nsqd has said about the publish, for the end of a sentence."""
    tried = tries_of(publish)
    return f"; nsqd said last: {tried.error}" if tried.error is not None else ""


def unknown_topic(table: TopicTable, publish: Publish) -> TopicNotExist:
    return TopicNotExist(
        f"{TopicNotExist.code} no nsqlookupd has a partition of the topic {table.topic!r} to publish to "
        f"({table.reason}{said(publish)}). Publishing creates no topic in a partitioned NSQ: its "
        "administrators do, in its admin or with nsqlookupd's /topic/create"
    )


class Particular(PartitionRules):
    """The rules of one publish with options, or with several messages."""

    def __init__(
        self,
        router: Host,
        bodies: list[bytes],
        *,
        several: bool,
        key: Key | None = None,
        partition: int | None = None,
        traces: list[int] | None = None,
        headers: list[bytes] | None = None,
        given: Mapping[str, object] | None = None,
        packed: bytes | None = None,
    ) -> None:
        super().__init__(router)
        self.key, self.partition = key, partition
        self.keeps_order = key is not None or partition is not None
        self.trace_id = traces[0] if traces else None
        self._bodies, self._several = bodies, several
        self._traces, self._headers = traces, headers
        self._given = given or {}
        self._packed = {} if packed is None else {"MPUB": packed}  # by verb: the data of the command

    def choose(self, topic: TopicSnapshot) -> int | None:
        name, meta = topic.table.topic, topic.table.meta
        most = math.inf if meta is None else meta.partition_num
        if self.partition is not None:
            if self.partition >= most:
                raise UsageError(
                    f"partition {self.partition} of {name!r} does not exist: the topic has {most}"
                )
            return self.partition
        if self.key is None:
            return None
        if topic.modulus is None:
            raise UsageError(
                f"key= needs the number of partitions of {name!r}, which these nsqlookupds do "
                "not tell: give it in key_partitions"
            )
        chosen = partition_for(self.key, topic.modulus, self.router.key_hash)
        if chosen >= most:
            raise UsageError(
                f"key_partitions has {topic.modulus} for {name!r}, so that the key {self.key!r:.200} belongs "
                f"to partition {chosen}, but the topic has {most}"
            )
        return chosen

    def place(self, publish: Publish, topic: TopicSnapshot, partition: int) -> None:
        super().place(publish, topic, partition)
        meta = topic.table.meta
        verb = self._verb(extended=meta is not None and meta.extended)
        if verb != "PUB":
            publish.command = wire.sized(verb, publish.topic, partition, self._data(verb))

    def _verb(self, *, extended: bool) -> str:
        kind = ""
        if self._headers is not None or (self._traces is not None and extended and not self._several):
            kind = "_EXT"
        elif self._traces is not None:
            kind = "_TRACE"
        return f"{'M' if self._several else ''}PUB{kind}"

    def _data(self, verb: str) -> bytes:
        if verb not in self._packed:
            messages = self._bodies
            if verb.endswith("_EXT"):
                headers = self._headers or [wire.checked_header(None, trace) for trace in self._traces or ()]
                messages = list(map(wire.extended, headers, messages))
            elif verb.endswith("_TRACE"):
                messages = list(map(wire.traced, self._traces or (), messages))
            self._packed = {verb: commands.pack_bodies(messages) if self._several else messages[0]}
        return self._packed[verb]

    def place_plainly(self, publish: Publish) -> None:
        if self._given:
            raise refused_option(*self._given)
        super().place_plainly(publish)
        if self._several:
            packed = self._data("MPUB")
            publish.command = b"MPUB %s\n%s%s" % (
                publish.topic.encode(),
                len(packed).to_bytes(4, "big"),
                packed,
            )
        else:
            publish.command = None

    @property
    def mpub_ext(self) -> bool:
        return self._several and self._headers is not None

    def accepts(self, publish: Publish, data: bytes) -> bool:
        found = wire.published(data)
        if found is None:
            return False
        publish.published = found._replace(trace_id=self.trace_id)  # a batch is answered with 0
        self.router.log_publish(publish, self._given)
        return True


def particular(
    router: Host,
    publish: Publish,
    bodies: list[bytes],
    given: Mapping[str, Any],
    config: Config,
    *,
    several: bool,
) -> Particular:
    """Check the options and return the rules that carry them out."""
    key, partition, trace, tag = map(given.get, ("key", "partition", "trace", "tag"))
    if key is not None and partition is not None:
        raise UsageError("key= and partition= are both given: the key decides on the partition")
    if key is not None:
        key = checked_key(key)
    if partition is not None:
        partition = wire.checked_partition(partition)
    traces = None
    if trace is not None:
        traces = [wire.checked_trace(trace)] * len(bodies)
    elif publish.topic in router.tracing:
        traces = [random.getrandbits(63) for _ in bodies]
    headers, overhead = None, 8 if traces else 0
    if "headers" in given or tag is not None:
        tag = None if tag is None else wire.checked_tag(tag)
        of_each: list[int | None] = [*traces] if traces else [None] * len(bodies)
        headers = [wire.checked_header(given.get("headers"), each, tag) for each in of_each]
        overhead = 2 + max(map(len, headers))
    if overhead:
        largest = max(map(len, bodies))
        if largest + overhead > config.max_msg_size:
            raise InvalidMessage(
                f"the message has {largest} bytes, and its trace id or headers {overhead}, must have at "
                f"most {config.max_msg_size} together (max_msg_size, to be that of nsqd)"
            )
        checked_bodies(bodies, config, overhead)
    if traces is not None:
        publish.published = Published(trace_id=traces[0])
        if several and headers is not None:
            publish.locks.append(_LoggedAtEnd(router, publish, given))
    return Particular(
        router,
        bodies,
        several=several,
        key=key,
        partition=partition,
        traces=traces,
        headers=headers,
        given=given,
    )


@dataclass
class _LoggedAtEnd:
    """Stands among the locks of a traced batch with headers: nsqd answers it with OK, which no rules see."""

    router: Host
    publish: Publish
    given: Mapping[str, Any]

    def release(self) -> None:
        if self.publish.error is None:
            self.router.log_publish(self.publish, self.given)
