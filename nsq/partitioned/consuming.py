"""What a consumer of a partitioned NSQ wants: a connection to the leader of each of its partitions.

Discovery's thread owns the picture of the cluster. When that changes, or a connection comes or goes, it
compares the leaders with the connections that there are. A partition that has moved gets its new connection
when the former one has ended. A cluster of the original NSQ is seen as such, and consumed as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from nsq.config import Config
from nsq.connection.conn import Conn
from nsq.connection.endpoint import Key, Wanted
from nsq.connection.subscription import Subscription
from nsq.consumer.connections import backoff_strategy
from nsq.consumer.engine import Engine, Parts, plain_pool
from nsq.consumer.rdy import OneEach
from nsq.discovery.lookups import Discovery
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
from nsq.partitioned.lookups import Lookups, key_of
from nsq.partitioned.ordered import OrderedPool
from nsq.partitioned.subscription import PartitionSubscription, Reading, mismatch
from nsq.partitioned.table import Kind, TopicTable
from nsq.partitioned.tracing import Tracing

log = Logger("nsq.discovery")

#: What nsqd answers to a subscription while leaders move, or the topic's settings change.
_PASSING = (NotLeader, NotWritable, TopicNotExist, ExtendNeeded, ExtendForbidden)


class ConsumerLookups(Lookups):
    """The questions of a consumer, which wants the nsqds of its topic alone."""

    def __init__(self, topic: str, config: Config, **options: Any) -> None:
        super().__init__(config, "r", **options)
        self._topic = topic
        self.learn(topic)

    def original_nodes(self, api: NsqlookupdApi) -> Sequence[NsqdNode]:
        return api.nodes_of(self._topic or "")


def parts_for(discovery: Mapping[str, Any], given: Mapping[str, Any]) -> Parts:
    """Return the parts of a consumer with these options, of those that need a partitioned NSQ. ``discovery``
    has the arguments of its ``Discovery``.
    """
    policy = {name: given[name] for name in ("on_stuck", "stuck_after", "out_of_order") if name in given}
    reading = Reading.checked(**{name: value for name, value in given.items() if name not in policy})
    tracing = Tracing()
    tracing.switch(discovery["subscription"].topic, reading.trace)
    discover = partial(PartitionDiscovery, reading=reading, tracing=tracing, **discovery)
    if reading.ordered:
        return Parts(discover, partial(_ordered_pool, policy), OneEach, tracing.switch)
    for name in policy:
        raise ConfigError(f"{name} has no effect without ordered=True")
    return Parts(discover, plain_pool, trace=tracing.switch)


def _ordered_pool(policy: dict[str, Any], engine: Engine, arguments: Mapping[str, Any]) -> OrderedPool:
    strategy, longest = backoff_strategy(engine.config), engine.config.max_backoff_duration
    return OrderedPool(
        pause=lambda attempts: min(strategy(attempts), longest),
        wake=engine.owner.wake,
        stop_partition=lambda partition: engine.discovery.stop_partition(partition),
        requeued=lambda message: engine.reporter.tell(engine.reporter.hooks.requeued, message),
        stuck=lambda message: engine.reporter.tell(engine.reporter.hooks.stuck, message),
        disorder=lambda message: engine.reporter.tell(engine.reporter.hooks.out_of_order, message),
        **policy,
        **arguments,
    )


class PartitionDiscovery(Discovery):
    """Finds the leaders of a topic's partitions; in a cluster of the original NSQ, the topic's nsqds."""

    def __init__(
        self,
        engine: Engine,
        *,
        subscription: Subscription,
        config: Config,
        reading: Reading,
        tracing: Tracing,
        nsqlookupds: Iterable[str],
        rewrite: Callable[[str], str] | None = None,
        **options: Any,
    ) -> None:
        pinned = cast("Kind | None", None if config.cluster == "detect" else config.cluster)
        lookups = ConsumerLookups(subscription.topic, config, pinned=pinned, rewrite=rewrite)
        super().__init__(
            subscription,
            config,
            found=engine.found,
            dropped=engine.dropped,
            name=engine.name,
            nsqlookupds=nsqlookupds,
            rewrite=rewrite,
            asker=lookups,
            **options,
        )
        lookups.attach(self, nsqlookupds, self._owner.ask, lambda: None)
        self._engine = engine
        self._reading, self._tracing = reading, tracing
        self._questions = lookups
        self._channel = subscription.channel
        self._urgent_since = -math.inf  # a connection was lost, or refused: ask after that
        self._stopped: set[int] = set()  # partitions that the user's decision has ended
        self._started: set[int] = set()  # partitions that have begun at the chosen position
        self._problem = ""
        self._count = 0  # partitions of the topic; 0: not known

    # Events of connections: any thread.

    def connected(self, conn: Conn) -> None:
        _, partition = conn.key
        if isinstance(partition, int):
            self._started.add(partition)
        else:
            super().connected(conn)

    @property
    def partitioned_by(self) -> set[str]:
        partitioned = self._questions.cluster.kind == "partitioned"
        return set(self._nsqlookupds.copy().values()) if partitioned else set()

    def disconnected(self, key: Key, cause: NsqError | None) -> None:
        self._owner.ask(partial(self._lost, cause))

    def _lost(self, cause: NsqError | None) -> None:
        if cause is not None:
            self._urgent_since = self._clock()

    def refused(self, key: Key, error: NsqError) -> bool:
        self._owner.ask(partial(self._refused, key, error))
        return isinstance(error, _PASSING)

    def _refused(self, key: Key, error: NsqError) -> None:
        self._urgent_since = now = self._clock()
        address, partition = key
        leader = self._table.leaders.get(partition) if isinstance(partition, int) else None
        if leader is None or self._rewritten(leader) != address:
            return
        topic, partition = self._topic or "", cast("int", partition)
        unreachable = isinstance(error, ConnectionFailed)
        if isinstance(error, (NotLeader, TopicNotExist)) or (
            unreachable and self._questions.cluster.is_disputed(topic, partition)
        ):
            self._urgent_since = self._questions.refuse(topic, partition, leader, now)

    def stop_partition(self, partition: int) -> None:
        """Leave a partition for good."""
        self._owner.ask(partial(self._stopped.add, partition))

    def add_nsqlookupd(self, address: str) -> None:
        if not self._owner.is_current:  # the user's: asked whether the cluster lists it or not
            self._questions.configure(address, True)
        super().add_nsqlookupd(address)

    def remove_nsqlookupd(self, address: str) -> None:
        super().remove_nsqlookupd(address)
        if not self._owner.is_current:
            self._questions.configure(address, False)
            self._owner.ask(partial(self._questions.cluster.failed, key_of(address)))

    # The discovery thread.

    def _turn(self) -> float | None:
        due = super()._turn()
        if due is None:
            return None
        cluster = self._questions.cluster
        incomplete = cluster.kind == "partitioned" and (bool(self.missing) or not self._table.leaders)
        urgent = self._urgent_since > cluster.asked_at(self._topic or "")
        return min(due, self._questions.refresh(self._clock(), urgent=urgent, incomplete=incomplete))

    @property
    def _absence_hint(self) -> str:
        if self._questions.cluster.kind != "partitioned":
            return super()._absence_hint
        return "Publishing creates no topic in a partitioned NSQ: an administrator does"

    @property
    def _table(self) -> TopicTable:
        return self._questions.cluster.table(self._topic or "")

    @property
    def missing(self) -> tuple[int, ...]:
        """The partitions that have no leader at the moment."""
        return tuple(filter(self._reading.selects, self._table.missing))

    def _report(self) -> None:
        kind = self._questions.cluster.kind
        if kind == "partitioned":
            self._want_partitions()
        elif kind is None or not self._reading.given:
            super()._report()
        else:
            option = self._reading.given[0]
            self._refuse(
                ConfigError(
                    f"{option} needs a partitioned NSQ, but the nsqlookupds belong to the original one"
                )
            )

    def _want_partitions(self) -> None:
        table = self._table
        problem = mismatch(table, self._reading)
        if problem is not None:
            self._refuse(problem)
            return
        self._problem = ""
        self._note_count(0 if table.meta is None else table.meta.partition_num)
        connected = {key[1]: key for key in self._engine.connected_keys() if isinstance(key[1], int)}
        wanted: dict[Key, Wanted] = {}
        for address, nsqd in self._directory.nsqds.items():
            if nsqd.given:
                want = self._wanted(address, nsqd)
                wanted[want.key] = want
        for partition, leader in sorted(table.leaders.items()):
            former = connected.get(partition)
            if not self._reading.selects(partition):
                continue
            if partition in self._stopped:
                if former is not None:
                    self._dropped(former)
                continue
            want = self._partition(table, partition, self._rewritten(leader))
            if former is not None and former != want.key:
                self._dropped(former)  # the new connection comes when it has ended
            elif self._accept is None or want.address in self._directory.nsqds:
                wanted[want.key] = want
        if wanted != self.wanted:
            self.wanted = wanted
            self._found(wanted)
            self._engine.give_each_room()

    def _note_count(self, count: int) -> None:
        before, self._count = self._count, count or self._count
        if before and before != self._count:
            log.warning(
                "%s: the number of partitions changed from %d to %d: from now on keys go to other "
                "partitions, so that order for a key holds only before and after",
                self._engine.name,
                before,
                count,
                extra=self._engine.reporter.fields(),
            )
            self._engine.reporter.tell(self._engine.reporter.hooks.partitions_changed, before, count)

    def _partition(self, table: TopicTable, partition: int, address: str) -> Wanted:
        pool = self._engine.pool
        subscription = PartitionSubscription(
            table.topic,
            self._channel,
            partition,
            table.meta is not None and table.meta.extended,
            self._reading,
            pool.delegate if isinstance(pool, OrderedPool) else None,
            self._tracing,
            self._started,
        )
        return Wanted(address, subscription, listed=True)

    def _refuse(self, problem: NsqError) -> None:
        """Report, once, that the topic cannot be consumed with these options."""
        if self._problem != str(problem):
            self._problem = str(problem)
            self._engine.refuse(problem)
        if self.wanted:
            self.wanted = {}
            self._found({})
