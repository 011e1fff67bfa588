"""What a publish to a partitioned cluster sends, and what the answers to it mean.

    PartitionRules   of a publish without options: any partition, joined with others of its lane
    Particular       of one with a key, a partition, a trace id, headers, a tag, or several messages

``choose`` names the partition, ``place`` encodes the command for it; ``refused`` and ``lost`` decide by the
table of rules whether it is tried again. The endpoints' threads and callers run these, for publishes that are
theirs at that moment.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from nsq.connection.conn import Conn
from nsq.errors import (
    BadBody,
    BadMessage,
    ExtNotSupported,
    NsqError,
    ServerError,
    TopicNotExist,
    Unanswered,
    UsageError,
)
from nsq.partitioned import wire
from nsq.partitioned.keys import Hash, Key, partition_for
from nsq.partitioned.table import TopicTable, retry_pause, rule_of
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.publishes import PLAIN, Publish, Rules, Verdict, refused, refused_option, unanswered
from nsq.wire import commands

Taker = tuple[PublishingEndpoint, Conn]

#: Seconds without an answer after which a node counts as stalled: what it owes is looked up and sent again.
PATIENCE = 3.0
#: So many sends without an answer make a publish look its partition up again.
_LOSSES_BEFORE_LOOKUP = 2


class Topic(NamedTuple):
    """A snapshot of a topic for callers."""

    table: TopicTable
    modulus: int | None
    """The number by which keys are divided."""
    live: tuple[int, ...]
    """The partitions that take publishes without a key."""
    lanes: tuple[str, ...]
    """Their lanes, if publishes without a key take them in turn."""
    takers: Mapping[int, Taker]
    turn: itertools.count[int]


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
    now: Callable[[], float]
    chance: Callable[[], float]

    def note_refusal(self, publish: Publish, error: ServerError, address: str) -> None:
        """Have a node left out that does not lead the publish's partition."""

    def log_publish(self, publish: Publish, given: Mapping[str, Any]) -> None:
        """Log a publish that was answered in full."""


class PartitionRules(Rules):
    """The rules of a publish without options, to any partition."""

    patience = PATIENCE
    keeps_order = False
    """Whether it must be stored behind earlier ones of its partition, in an ordered topic."""
    key: Key | None = None
    partition: int | None = None

    def __init__(self, router: Host) -> None:
        self.router = router

    # Where it goes.

    def choose(self, topic: Topic) -> int | None:
        """Return the partition; None: any. Raises UsageError if there is no such partition."""
        return None

    def place(self, publish: Publish, topic: Topic, partition: int) -> None:
        """Set what the publish sends."""
        publish.lane = f"{publish.topic} {partition}"

    def place_plainly(self, publish: Publish) -> None:
        """Make it one for the original NSQ, or raise UsageError."""
        publish.rules, publish.lane = PLAIN, publish.topic

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
            return refused(batch, error, address, retry_uncertain)  # one is at fault: each alone
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

    def _pause(self, publish: Publish, failures: int, address: str) -> None:
        """Have the pool's thread place the publish anew: after a pause, or on another nsqd."""
        tried = _tries(publish)
        tried.address = address
        publish.lane = publish.topic
        tried.not_before = self.router.now() + retry_pause(failures, self.router.chance)

    def is_nsqd_well(self, error: ServerError) -> bool:
        return rule_of(error).look_up or not error.retry


def _tries(publish: Publish) -> Tries:
    if publish.memory is None:
        publish.memory = Tries()
    return cast("Tries", publish.memory)


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
        self.awaited = False  # the pool's thread has sent it, and sends the next of its partition afterwards
        self.trace_id = traces[0] if traces else None
        self._bodies, self._several = bodies, several
        self._traces, self._headers = traces, headers
        self._given = given or {}
        self._packed = {} if packed is None else {"MPUB": packed}  # by verb: the data of the command

    def choose(self, topic: Topic) -> int | None:
        if self.partition is not None:
            meta = topic.table.meta
            if meta is not None and self.partition >= meta.partition_num:
                raise UsageError(
                    f"partition {self.partition} of {topic.table.topic!r} does not exist: "
                    f"the topic has {meta.partition_num}"
                )
            return self.partition
        if self.key is None:
            return None
        if topic.modulus is None:
            raise UsageError(
                f"key= needs the number of partitions of {topic.table.topic!r}, which these nsqlookupds do "
                "not tell: give it in key_partitions"
            )
        return partition_for(self.key, topic.modulus, self.router.key_hash)

    def place(self, publish: Publish, topic: Topic, partition: int) -> None:
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
