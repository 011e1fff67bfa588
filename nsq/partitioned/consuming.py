"""What a consumer of a partitioned NSQ wants: a connection to the leader of each of its partitions.

Discovery's thread owns the picture of the cluster. When that changes, or a connection comes or goes, it
compares the leaders with the connections that there are. A partition that has moved gets its new connection
when the former one has ended.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from nsq.connection.conn import Conn
from nsq.connection.endpoint import Key, Wanted
from nsq.consumer.dialect import Original
from nsq.consumer.engine import Engine
from nsq.consumer.reports import ConsumerHealth, ConsumerStats, PartitionHealth
from nsq.discovery.directory import Kind
from nsq.discovery.lookups import Asker, Discovery
from nsq.errors import (
    ConfigError,
    ConnectionFailed,
    ExtendForbidden,
    ExtendNeeded,
    NotLeader,
    NotWritable,
    NsqError,
    TopicNotExist,
)
from nsq.http.nsqlookupd import NsqdNode, NsqlookupdApi
from nsq.log import Logger
from nsq.message import MessageDelegate
from nsq.partitioned.lookups import Lookups, key_of
from nsq.partitioned.subscription import PartitionSubscription, Reading, mismatch
from nsq.partitioned.table import TopicTable

log = Logger("nsq.consumer")

#: What nsqd answers to a subscription while leaders move, or the topic's settings change.
_PASSING = (NotLeader, NotWritable, TopicNotExist, ExtendNeeded, ExtendForbidden)
#: Seconds that a former leader has to answer CLS. If it does not, it stalls, and holds up the new leader,
#: which delivers again what is in flight.
_FORMER_PATIENCE = 5.0


class Partitioned(Original):
    """The dialect for a partitioned NSQ, whose messages come in any order."""

    def __init__(self, engine: Engine, reading: Reading) -> None:
        super().__init__(engine)
        self.reading = reading
        self.leaders: Leaders | None = None
        self._leaving: dict[Conn, float] = {}  # they got CLS, and have until then to answer it

    requeued_here = 0
    """The requeues that nsqd knows nothing of: the message waits here for its next attempt."""

    #: Maps a connection and a partition to what answers the messages; None: the connection does.
    delegate: Callable[[Conn, int], MessageDelegate] | None = None

    def asker(self, discovery: Discovery) -> Asker:
        self.leaders = Leaders(self._engine, self, discovery)
        return self.leaders

    def refused(self, key: Key, error: NsqError) -> bool:
        if self.leaders is not None:
            self.leaders.rounds.owner.ask(partial(self.leaders.note_refusal, key, error))
        return isinstance(error, _PASSING)

    def lost(self, key: Key, cause: NsqError | None) -> None:
        if self.leaders is not None:
            self.leaders.rounds.owner.ask(partial(self.leaders.note_loss, cause))

    def leave(self, key: Key) -> None:
        """Close a connection whose partition is led elsewhere: at once if nsqd has not answered CLS after a
        moment, although it may still accept the answers of busy handlers. Any thread.
        """
        self._engine.owner.ask(partial(self._leave, key))

    def _leave(self, key: Key) -> None:
        conn = self._engine.leave(key)
        if conn is not None:
            self._leaving[conn] = time.monotonic() + _FORMER_PATIENCE

    def turn(self, now: float) -> float:
        """Leave the nsqds that have not answered CLS in time."""
        for conn, by in list(self._leaving.items()):
            silent = not (conn.closed or conn.deliveries.close_wait)
            if silent and now >= by:
                name, fields = self._engine.name, self._engine.reporter.fields(conn.address)
                log.warning("%s: %s does not answer CLS, and is left", name, conn.address, extra=fields)
                conn.close()
            if not silent or now >= by:
                del self._leaving[conn]
        return min(self._leaving.values(), default=math.inf)

    def stop_partition(self, partition: int) -> None:
        """Leave a partition for good. Any thread."""
        if self.leaders is not None:
            self.leaders.rounds.owner.ask(partial(self.leaders.stopped.add, partition))

    def partitions(self, now: float) -> list[PartitionHealth]:
        """Return the health of each partition that is handled in order."""
        return []

    def stats(self, known: ConsumerStats) -> ConsumerStats:
        errors = sum(each.order_errors for each in self.partitions(time.monotonic()))
        return replace(known, requeued=known.requeued + self.requeued_here, order_errors=errors)

    def health(self, known: ConsumerHealth) -> ConsumerHealth:
        partitions = self.partitions(time.monotonic())
        missing = [] if self.leaders is None else list(self.leaders.missing)
        found = {
            "stuck": [each.partition for each in partitions if each.stuck and not each.stopped],
            "stopped": [each.partition for each in partitions if each.stopped],
            "without a leader": missing,
        }
        named = [f"{', '.join(map(str, numbers))} {state}" for state, numbers in found.items() if numbers]
        summary = known.summary
        if named and known.ok and known.state == "running":
            summary += f"; partitions {'; '.join(named)}"
        return replace(known, summary=summary, partitions=partitions, missing_partitions=missing)


class Leaders(Lookups):
    """Finds the leaders of a topic's partitions. Discovery's thread owns it and calls the methods."""

    def __init__(self, engine: Engine, dialect: Partitioned, discovery: Discovery) -> None:
        config = engine.config
        pinned = cast("Kind | None", None if config.cluster == "detect" else config.cluster)
        super().__init__(config, "r", pinned=pinned, rewrite=discovery.rewritten, clock=discovery.clock)
        self.attach(discovery, discovery.owner.ask, lambda: None)
        self.learn(engine.topic)
        self.rounds = discovery
        self.stopped: set[int] = set()
        """Partitions that the user's decision has ended."""
        self._engine, self._dialect, self._reading = engine, dialect, dialect.reading
        self._given = self._given_now()
        self._urgent_since = -math.inf  # a connection was lost, or refused: ask after that
        self._started: set[int] = set()  # partitions that have begun at the chosen position
        self._problem = ""
        self._warned_of_turns = False
        self._count = 0  # partitions of the topic; 0: not known

    def original_nodes(self, api: NsqlookupdApi) -> Sequence[NsqdNode]:
        return api.nodes_of(self._engine.topic)

    @property
    def absence_hint(self) -> str:  # type: ignore[override]
        if self.cluster.kind != "partitioned":
            return super().absence_hint
        return "Publishing creates no topic in a partitioned NSQ: an administrator does"

    @property
    def _table(self) -> TopicTable:
        return self.cluster.table(self._engine.topic)

    @property
    def missing(self) -> tuple[int, ...]:
        """The partitions that have no leader at the moment. Any thread."""
        return tuple(filter(self._reading.selects, self._table.missing))

    # Events.

    def note_loss(self, cause: NsqError | None) -> None:
        """Note the end of a connection."""
        if cause is not None:
            self._urgent_since = self._clock()

    def note_refusal(self, key: Key, error: NsqError) -> None:
        """Note a failed dial or subscription."""
        self._urgent_since = now = self._clock()
        address, partition = key
        leader = self._table.leaders.get(partition) if isinstance(partition, int) else None
        if leader is None or self.rounds.rewritten(leader) != address:
            return
        topic, partition = self._engine.topic, cast("int", partition)
        unreachable = isinstance(error, ConnectionFailed)
        if isinstance(error, (NotLeader, TopicNotExist)) or (
            unreachable and self.cluster.is_disputed(topic, partition)
        ):
            self._urgent_since = self.refuse(topic, partition, leader, now)

    def _given_now(self) -> set[str]:
        return set(map(key_of, self.rounds.given_nsqlookupds))

    def turn(self) -> float:
        before, self._given = self._given, self._given_now()
        for removed in before - self._given:  # what it has said counts only while no other knows better
            self.cluster.failed(removed)
        partitioned = self.cluster.kind == "partitioned"
        incomplete = partitioned and (bool(self.missing) or not self._table.leaders)
        urgent = self._urgent_since > self.cluster.asked_at(self._engine.topic)
        return self.refresh(self._clock(), urgent=urgent, incomplete=incomplete)

    # Which connections to have.

    def wanted(self, named: dict[Key, Wanted]) -> dict[Key, Wanted]:
        table = self._table
        problem = mismatch(table, self._reading)
        if self.cluster.kind == "original" and self._engine.options:
            option = next(iter(self._engine.options))
            text = f"{option} needs a partitioned NSQ, but the nsqlookupds belong to the original one"
            problem = ConfigError(text)
        if problem is not None:
            if self._problem != str(problem):
                self._engine.refuse(problem)
            self._problem = str(problem)
            return {}
        self._problem = ""
        if self.cluster.kind != "partitioned":
            return named
        self._note_count(0 if table.meta is None else table.meta.partition_num)
        connected = {key[1]: key for key in self._engine.connections.table if isinstance(key[1], int)}
        wanted = {key: each for key, each in named.items() if each.given}
        for partition, leader in sorted(table.leaders.items()):
            former = connected.get(partition)
            if not self._reading.selects(partition):
                continue
            if partition in self.stopped:
                if former is not None:
                    self._dialect.leave(former)
                continue
            want = self._wanted(table, partition, self.rounds.rewritten(leader))
            if former is not None and former != want.key:
                # The new connection comes when it has ended.
                self._dialect.leave(former)
            elif (want.address, None) in named:  # else the user does not accept it
                wanted[want.key] = want
        self._warn_of_turns(len(wanted))
        return wanted

    def _warn_of_turns(self, connections: int) -> None:
        most = self._engine.connections.windows.max_in_flight
        given = self._engine.connections.max_in_flight_given and not self._reading.ordered
        if given and 0 < most < connections and not self._warned_of_turns:
            self._warned_of_turns = True
            log.warning(
                "%s: max_in_flight is %d, but there are %d partitions: they take turns, one message each. "
                "Leave it out, or give at least their number",
                self._engine.name,
                most,
                connections,
                extra=self._engine.reporter.fields(),
            )

    def _wanted(self, table: TopicTable, partition: int, address: str) -> Wanted:
        subscription = PartitionSubscription(
            table.topic,
            self._engine.subscription.channel,
            partition,
            table.meta is not None and table.meta.extended,
            self._reading,
            self._dialect.delegate,
            lambda: self._engine.traced,
            self._started,
        )
        return Wanted(address, subscription, listed=True)

    def _note_count(self, count: int) -> None:
        before, self._count = self._count, count or self._count
        if before and before != self._count:
            reporter = self._engine.reporter
            log.warning(
                "%s: the number of partitions changed from %d to %d: from now on keys go to other "
                "partitions, so that order for a key holds only before and after",
                self._engine.name,
                before,
                count,
                extra=reporter.fields(),
            )
            reporter.tell(reporter.hooks.partitions_changed, before, count)
