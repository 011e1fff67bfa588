"""The producer's side of a partitioned cluster: which nsqd takes which publish.

    a user's thread     makes a publish: checks the options, picks a partition from the latest snapshot
    the pool's thread   ``assign`` gives waiting publishes to the leaders of their partitions, and parks those
                        whose leader is away; it merges the nsqlookupds' answers and has them asked again

A publish with a key never goes to another partition: it is parked until its own has a leader, in order, or
until its deadline. A publish without one goes to any partition whose leader is connected.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, cast

from nsq.config import Config
from nsq.discovery.directory import Kind
from nsq.errors import ExtNotSupported, NsqError, ServerError, UsageError
from nsq.log import Logger
from nsq.partitioned.blocked import BLOCKED_AFTER, Blocked
from nsq.partitioned.keys import Hash
from nsq.partitioned.lookups import Lookups
from nsq.partitioned.rules import (
    NO_TRIES,
    PATIENCE,
    UNPLACED,
    Particular,
    PartitionRules,
    Tries,
    particular,
    said,
    unknown_topic,
)
from nsq.partitioned.snapshots import Place, Snapshots, Taker, Topic
from nsq.partitioned.tracing import Tracing, log_publish
from nsq.producer.book import AddressBook, Takers
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.pool import Pool
from nsq.producer.publishes import (
    NO_OPTIONS,
    P,
    Publish,
    PublishOptions,
    checked_bodies,
    given_options,
    new_multi_publish,
    new_publish,
    refused_option,
    unsent,
)
from nsq.wire import commands
from nsq.wire.names import check_topic

log = Logger("nsq.producer")

#: Seconds after a cluster turned out to be an original one in which publishes made before may be queued.
_LATE = 5.0
#: Stands for a partition while publishes go to nsqds that the user named.
_NAMED = -1
#: Seconds without an answer after which a former leader, that owes one, is given up.
_FORMER_PATIENCE = 0.5
#: Seconds between two looks at a former leader that owes an answer.
_HOLD = 0.02
#: The most messages and bytes of an ordered partition that are under way at a time.
_BURST_MESSAGES, _BURST_BYTES = 1000, 512 * 1024
#: While more publishes than this wait, so many in a row go to one partition, which then are beside each other
#: in memory: that takes a sixth off the time of each.
_MANY, _RUN = 1000, 64
_DPUB = b"DPUB "
_started = attrgetter("started")


class Router(AddressBook):
    """Knows which nsqd leads which partition. Falls back to any nsqd while the cluster is an original one."""

    def __init__(
        self,
        config: Config,
        nsqds: Iterable[str],
        nsqlookupds: Iterable[str],
        key_hash: Hash | None = None,
        key_partitions: Mapping[str, int] | None = None,
        least_pending: bool = False,
        tracing: Tracing | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        pinned = cast("Kind | None", None if config.cluster == "detect" else config.cluster)
        self.lookups = Lookups(config, "w", pinned=pinned, clock=clock)
        self.asker = self.lookups
        self.kind: Kind | None = None
        self.key_hash = key_hash
        self.tracing = tracing or Tracing()
        self.now, self.chance = clock, chance
        self.topics: Mapping[str, Topic] = {}
        """Snapshots for callers. Replaced, never changed."""
        self.new_publish = self._new_publish
        self.new_multi_publish = self._new_multi_publish
        self._nsqds = tuple(nsqds)
        self._snapshots = Snapshots(key_partitions or {}, in_turn=not least_pending)
        self._least_pending = least_pending
        self._anywhere = PartitionRules(self)
        self._pool: Pool
        # The pool's thread.
        self._parked: dict[Place, list[Publish]] = {}  # in the order of their calls
        self._named_turn = itertools.count()
        # Of parked publishes, what was known at the last try, and when to try again.
        self._blocked: dict[Place, tuple[object, float]] = {}
        self._last: dict[tuple[str, int], PublishingEndpoint] = {}  # the leader that got the latest publish
        self.bursts: dict[Place, list[Publish]] = {}  # by partition of an ordered topic: unanswered publishes
        self._growing: Place | None = None  # the burst that is being made
        self._held: dict[tuple[str, int], float] = {}  # while a former leader owes an answer: since when
        self._owing = False  # an nsqd owes an answer
        self._blocked_partitions = Blocked()
        self._late_until = -math.inf
        self._wanted: frozenset[str] = frozenset()  # leaders that are not connected, and publishes wait for
        self._shown: object = None  # the places that callers do not see

    def begin(self, pool: Pool) -> None:
        self._pool = pool
        self.lookups.attach(pool.discovery, pool.owner.ask, pool.owner.wake)

    # Making a publish: a user's thread.

    def _new_publish(
        self,
        make: type[P],
        topic: str,
        body: object,
        defer: Any,
        config: Config,
        options: PublishOptions = NO_OPTIONS,
    ) -> P:
        # The usual case first: this runs for every message.
        known = self.topics.get(topic) if type(topic) is str else None
        if (
            known is not None
            and (lanes := known.lanes)
            and defer is None
            and not options
            and topic not in self.tracing.topics
            and type(body) is bytes
            and 0 < len(body) <= config.max_msg_size
        ):
            publish = make(topic, body)
            publish.rules = self._anywhere
            turn = next(known.turn)
            if len(self._pool.pending) > _MANY:
                turn //= _RUN
            publish.lane = lanes[turn % len(lanes)]
            return publish
        if defer is not None and self.kind is not None:
            raise _no_deferring()
        publish = new_publish(make, topic, body, defer, config)
        given = given_options(options) if options else {}
        if publish.command is not None:  # deferred, and the kind of the cluster is not known yet
            publish.rules, publish.lane = self._anywhere, UNPLACED
            self.lookups.learn(publish.topic)
            return publish
        if not given and publish.topic not in self.tracing:
            publish.rules = self._anywhere
        else:
            publish.rules = particular(self, publish, [publish.body], given, config, several=False)
        self._place_now(publish)
        return publish

    def _new_multi_publish(
        self,
        make: type[P],
        topic: str,
        bodies: Iterable[object],
        config: Config,
        options: PublishOptions = NO_OPTIONS,
    ) -> P:
        name = check_topic(topic)
        checked, size = checked_bodies(bodies, config)
        publish = make(name, b"")
        publish.messages, publish.size = len(checked), size
        publish.rules = particular(self, publish, checked, given_options(options), config, several=True)
        publish.command = commands.mpub(name, checked)  # until it is placed
        self._place_now(publish)
        return publish

    def trace(self, topic: str, on: bool) -> None:
        """Switch tracing of a topic on or off. Any thread may call this."""
        if self.kind == "original":
            raise refused_option("trace")
        self.tracing.switch(check_topic(topic), on)

    def _place_now(self, publish: Publish) -> None:
        """Place a publish if its topic is known; else the pool's thread will."""
        topic = self.topics.get(publish.topic)
        rules = cast("PartitionRules", publish.rules)
        if topic is None:
            publish.lane = UNPLACED
            self.lookups.learn(publish.topic)
            return
        chosen = rules.choose(topic)
        if chosen is None and topic.live:
            chosen = self._pick(topic, topic.live)
        meta = topic.table.meta
        in_order = rules.keeps_order and meta is not None and meta.ordered and type(publish) is not Publish
        if chosen is None or in_order:  # the pool's thread sends futures of an ordered topic
            publish.lane = UNPLACED
        else:
            rules.place(publish, topic, chosen)

    def _pick(self, topic: Topic, live: tuple[int, ...]) -> int:
        turn = next(topic.turn)
        first = live[turn % len(live)]
        if not self._least_pending or len(live) < 2:
            return first
        other = live[int(self.chance() * len(live)) % len(live)]
        loads = [topic.takers[each][0].load if each in topic.takers else math.inf for each in (first, other)]
        return other if loads[1] < loads[0] else first

    def note_version(self, address: str, version: str) -> None:
        if self.kind == "original":
            super().note_version(address, version)

    def note_refusal(self, publish: Publish, error: ServerError, address: str) -> None:
        """Have a node left out that does not lead the partition. For the endpoints, and for callers."""
        _, _, partition = publish.lane.rpartition(" ")
        if not isinstance(error, ExtNotSupported) and partition.isdigit():
            where = publish.topic, int(partition), address
            self._pool.owner.ask(partial(self.lookups.refuse, *where, self.now()))

    def note_silence(self, lane: str, address: str) -> None:
        """Have the publishes of a partition kept apart, about which its leader is silent. For callers."""
        self._pool.owner.ask(partial(self._note_blocked, lane, address))

    def log_publish(self, publish: Publish, given: Mapping[str, Any]) -> None:
        """Log an answered publish, if its topic is traced. The pool's thread does it: logging takes locks."""
        endpoint = publish.endpoint
        if publish.topic in self.tracing and endpoint is not None:
            partition = int(publish.lane.rpartition(" ")[2])
            where = publish.topic, partition, endpoint.address, publish.published
            conn = endpoint.conn  # once: it may end meanwhile
            local_ip = None if conn is None else conn.local_ip
            tag, headers = given.get("tag"), given.get("headers")
            request = partial(log_publish, *where, local_ip=local_ip, tag=tag, headers=headers)
            self._pool.owner.ask(request)

    # The pool's thread.

    def assign(self, takers: Takers) -> bool:
        if self.lookups.cluster.kind != self.kind:
            self._switch(self.lookups.cluster.kind)
        if self.kind == "original":
            if not takers and self.now() < self._late_until:
                for publish in self._pool.waiting.copy():
                    self.prepare(publish)
            return False
        pool, waiting = self._pool, self._pool.waiting
        pool.usable = ()
        now = self.now()
        self._blocked_partitions.review(self._leader, pool.endpoints.table.get, now)
        pool.nsqds.want_spares(set(self._blocked_partitions.endpoints.values()))
        self._let_go(now)
        self._update(takers)
        while True:
            while waiting:
                publish = waiting[0]
                if publish.done():
                    pool.forget(publish)
                else:
                    self._send_or_park(publish, now)
                waiting.popleft()  # last: while ``waiting`` is not empty, newer publishes queue behind it
            self._release(now)
            self._show()
            if not waiting:  # else a publish came before callers could see the snapshots
                break
        self._look_ahead(now)
        self._watch(takers, now)
        return True

    def _switch(self, kind: Kind | None) -> None:
        """Follow the cluster's kind. Publishes that wait become those of the other NSQ."""
        if kind is not None:
            log.info(
                "the nsqlookupds belong to %s NSQ",
                "a partitioned" if kind == "partitioned" else "the original",
            )
        self.kind = kind
        pool = self._pool
        if kind != "original":
            self.new_publish, self.new_multi_publish = self._new_publish, self._new_multi_publish
            pool.usable = ()
            return
        self.new_publish, self.new_multi_publish = new_publish, new_multi_publish
        self.due_at, self.urgent, self._snapshots.seen = math.inf, False, None
        parked, self._parked, self._blocked, self.bursts = self._parked, {}, {}, {}
        self._held, self._last = {}, {}
        self._blocked_partitions.endpoints.clear()
        pool.nsqds.want_spares(())
        # Publishes that were made before this line, and are queued after it, wait for ``prepare``. Without a
        # connection none is handed out: ``assign`` prepares those that are queued soon.
        self._late_until = self.now() + _LATE
        pool.lanes, self.topics = dict.fromkeys([UNPLACED, *self._snapshots.possible_lanes()], ()), {}
        waiting = list(itertools.chain(*parked.values()))
        while pool.waiting:
            waiting.append(pool.waiting.popleft())
        for publish in waiting:
            self.prepare(publish)
        pool.waiting.extendleft(sorted(waiting, key=_started, reverse=True))

    def prepare(self, publish: Publish) -> None:
        """Make a publish one for the original NSQ; end it if it needs a partitioned one."""
        if isinstance(publish.rules, PartitionRules) and not publish.done():
            try:
                publish.rules.place_plainly(publish)
            except UsageError as error:
                self._fail(publish, error)

    def _send_or_park(self, publish: Publish, now: float) -> None:
        if publish.rules.awaited:
            cast("PartitionRules", publish.rules).awaited = False  # it has come back
        place, taker = self._find(publish, now)
        if place is None:
            return
        if taker is not None and place not in self._parked and not self._keeps_order(publish):
            self._send(publish, taker)
        else:
            self._park(publish, place)

    def _park(self, publish: Publish, place: Place) -> None:
        parked = self._parked.setdefault(place, [])
        if parked and parked[-1].started > publish.started:
            insort(parked, publish, key=_started)
        else:
            parked.append(publish)
        if parked[0] is publish or publish.memory is not None:
            self._blocked.pop(place, None)  # look at them again

    def _keeps_order(self, publish: Publish) -> bool:
        """Whether a publish must not leave before those that were sent to its partition have been answered:
        nsqd may refuse one, and take the next.
        """
        topic = self._snapshots.topics.get(publish.topic)
        meta = None if topic is None else topic.table.meta
        rules = publish.rules
        return meta is not None and meta.ordered and isinstance(rules, PartitionRules) and rules.keeps_order

    def _send(self, publish: Publish, taker: Taker) -> None:
        publish.endpoint, conn = taker
        conn.put(publish)
        if conn.closed:
            self._pool.take_back(conn.waiting)

    def _find(self, publish: Publish, now: float) -> tuple[Place | None, Taker | None]:
        """Return where a publish belongs, and the connection that takes it now; no place if it has ended."""
        if self.kind is None:
            return self._find_given(publish)
        if not isinstance(publish.rules, PartitionRules):
            self._adopt(publish)
        if publish.command is not None and publish.command.startswith(_DPUB):
            return self._fail(publish, _no_deferring())
        rules, name = cast("PartitionRules", publish.rules), publish.topic
        tried: Tries = publish.memory or NO_TRIES
        self.lookups.learn(name)
        table, asked_at = self.lookups.cluster.table(name), self.lookups.cluster.asked_at(name)
        outdated = asked_at < tried.lookup_after
        if table.known is None:
            return (name, None), None
        if not table.known:
            if outdated or asked_at < publish.started:
                return (name, None), None
            self.lookups.forget(name)
            return self._fail(publish, unknown_topic(table, publish))
        topic = self._snapshots.topics[name]
        try:
            chosen = rules.choose(topic)
        except UsageError as error:
            return self._fail(publish, error)
        # The pause is for the nsqd that has refused it: another one is tried at once.
        resting = tried.address if tried.not_before > now else ""
        if chosen is None:
            live = tuple(
                each
                for each in topic.live
                if (name, each) not in self._parked
                and (name, each) not in self._held
                and topic.table.leaders[each] != resting
            )
            if not live or outdated:
                return (name, None), None
            chosen = self._pick(topic, live)
        rules.place(publish, topic, chosen)
        place = name, chosen
        waits = outdated or topic.table.leaders.get(chosen) == resting or place in self._held
        behind = place in self.bursts and place != self._growing and self._keeps_order(publish)
        if waits or behind:
            return place, None
        return place, topic.takers.get(chosen)

    def _find_given(self, publish: Publish) -> tuple[Place | None, Taker | None]:
        """While the kind of the cluster is not known, plain publishes may go to nsqds that the user named."""
        self.lookups.learn(publish.topic)
        place = publish.topic, None
        given = [self._snapshots.open[each] for each in self._nsqds if each in self._snapshots.open]
        if not given:
            return place, None
        try:
            if isinstance(publish.rules, PartitionRules):
                publish.rules.place_plainly(publish)
        except UsageError:  # it needs a partitioned cluster, which this may turn out to be
            return place, None
        return (publish.topic, _NAMED), given[next(self._named_turn) % len(given)]

    def _adopt(self, publish: Publish) -> None:
        """Make a publish for the original NSQ one for this cluster."""
        command = publish.command
        if command is None or command.startswith(_DPUB):
            publish.rules = self._anywhere
        else:
            publish.rules = Particular(self, [], several=True, packed=command[command.index(b"\n") + 5 :])

    def _fail(self, publish: Publish, error: NsqError) -> tuple[None, None]:
        if publish.uncertain_at:
            error = unsent(publish, str(error))
        if publish.claim.acquire(False):
            self._pool.complete([publish], error)
        return None, None

    def _release(self, now: float) -> None:
        """Send parked publishes whose leader is there, in order."""
        version = self._snapshots.seen, self.lookups.cluster.version
        # First those that wait for any partition, or for their topic's table: they may queue behind others.
        for place in [place for place in self._parked if place[1] is None]:
            self._release_at(place, version, now)
        for place in [place for place in self._parked if place[1] is not None]:
            self._release_at(place, version, now)
        # Those may have left a partition to the others.
        for place in [place for place in self._parked if place[1] is None and place not in self._blocked]:
            self._release_at(place, version, now)

    def _unblock(self, place: Place) -> None:
        """Look again at the publishes of a partition, and at those that wait for any."""
        self._blocked.pop(place, None)
        self._blocked.pop((place[0], None), None)

    def _release_at(self, place: Place, version: object, now: float) -> None:
        known_version, retry_at = self._blocked.get(place, (None, -math.inf))
        if known_version == version and now < retry_at:
            return
        parked = self._parked.pop(place)
        kept: list[Publish] = []
        burst, size = list[Publish](), 0
        for index, publish in enumerate(parked):
            if publish.done():
                self._pool.forget(publish)
                continue
            found, taker = self._find(publish, now)
            if found is None:
                continue
            in_order = self._keeps_order(publish)
            if found != place and (taker is None or in_order):
                self._park(publish, found)
            elif taker is None:
                kept.append(publish)
                if place[1] is not None:  # the others of this partition stay behind it
                    kept += parked[index + 1 :]
                    break
            elif not in_order:
                self._send(publish, taker)
            else:
                size += 4 + publish.size
                alone = publish.command is not None or (burst[-1:] and burst[-1].command is not None)
                if burst and (alone or len(burst) == _BURST_MESSAGES or size > _BURST_BYTES):
                    kept += parked[index:]
                    break
                burst.append(publish)
                self.bursts[place], self._growing = burst, place  # first: its end may come at once
                cast("PartitionRules", publish.rules).awaited = True
                self._send(publish, taker)
        self._growing = None
        self._blocked.pop(place, None)
        if not kept:
            self._unblock(place)
        else:
            self._parked[place] = sorted([*kept, *self._parked.get(place, ())], key=_started)
            retries = [each.memory.not_before for each in kept if each.memory is not None]
            retry_at = min((each for each in retries if each > now), default=math.inf)
            self._blocked[place] = version, retry_at

    # Snapshots: what follows from tables and connections.

    def _update(self, takers: Takers) -> None:
        if self._snapshots.update(takers, self.lookups.cluster.tables, self._blocked_partitions.endpoints):
            self._shown = None
            self._note_moves()

    def _note_moves(self) -> None:
        """Hold publishes to a new leader back while the former one owes an answer, so that none overtakes; at
        first in any case: a caller may be about to send to the former one.
        """
        for name, topic in self._snapshots.topics.items():
            for partition, taker in topic.takers.items():
                place = name, partition
                before = self._last.get(place)
                if before is not None and before is not taker[0]:
                    self._held.setdefault(place, self.now())
                else:
                    self._last[place] = taker[0]

    def _note_blocked(self, lane: str, address: str) -> None:
        """Note that a partition is blocked, if it is led there."""
        name, _, partition = lane.rpartition(" ")
        if self.kind != "partitioned" or not partition.isdigit():
            return
        place = name, int(partition)
        if self._leader(place) == address and self._blocked_partitions.add(place, address, self.now()):
            self._pool.owner.wake()
            log.warning(
                "%s does not answer about partition %d of %r, whose publishes get a connection of their own",
                address,
                place[1],
                name,
                extra={"nsqd_address": address},
            )

    def _leader(self, place: tuple[str, int]) -> str:
        return self.lookups.cluster.table(place[0]).leaders.get(place[1], "")

    def _let_go(self, now: float) -> None:
        """Stop holding publishes back where those before them have been answered, or the former leader does
        not answer for long.
        """
        for place, burst in self.bursts.copy().items():
            if all(publish.done() or not publish.rules.awaited for publish in reversed(burst)):
                del self.bursts[place]
                self._blocked.pop(place, None)
                self._shown = None
        for place, since in self._held.copy().items():
            name, partition = place
            former = self._last[place]
            if former.owes(f"{name} {partition}") and now - since < 3 * PATIENCE:
                if now - since > _FORMER_PATIENCE and now - former.silent_since > _FORMER_PATIENCE:
                    former.give_up()
            else:
                del self._held[place]
                topic = self._snapshots.topics.get(name)
                taker = None if topic is None else topic.takers.get(partition)
                if taker is not None:
                    self._last[place] = taker[0]
                self._unblock(place)
                self._shown = None

    def _show(self) -> None:
        """Let callers see the snapshots, but no lane that has parked publishes: newer ones queue behind."""
        parked = {place for place in (*self._parked, *self._held, *self.bursts) if place[1] is not None}
        if self._shown == parked:
            return
        self._shown = parked
        topics, lanes = self._snapshots.without(parked)
        # First the topics: a lane that is not there any more makes a publish wait, a wrong one is refused.
        self.topics, self._pool.lanes = topics, lanes

    def _look_ahead(self, now: float) -> None:
        """Have nsqlookupds asked and leaders dialed that publishes wait for; set when to assign next."""
        self._leave_unreachable(now)
        absent = set(self._absent_leaders())
        waits = bool(absent) or any(self._needs_lookup(place) for place in self._parked)
        self.urgent = waits
        if absent - self._wanted:
            self._pool.endpoints.hurry()  # their pauses are shorter now
        self._wanted = frozenset(absent)
        due = self.lookups.refresh(now, urgent=waits, incomplete=self._snapshots.incomplete)
        self.due_at = min([due, *(retry_at for _, retry_at in self._blocked.values())])
        if self._held:
            self.due_at = min(self.due_at, now + _HOLD)
        if self._blocked_partitions.endpoints:
            self.due_at = min(self.due_at, now + 1.0)  # to let them share a connection again

    def _leave_unreachable(self, now: float) -> None:
        """Leave out the leaders that cannot be reached where an nsqlookupd names another node."""
        cluster = self.lookups.cluster
        for name, wanted in self._parked:
            leaders = cluster.table(name).leaders
            for partition in leaders if wanted is None else [wanted]:
                leader = leaders.get(partition, "")
                endpoint = self._pool.endpoints.table.get((leader, None))
                unreachable = endpoint is not None and not endpoint.open and endpoint.backoff.failures > 0
                if unreachable and cluster.is_disputed(name, partition):
                    self.lookups.refuse(name, partition, leader, now)
                    self._pool.owner.wake()

    def _watch(self, takers: Takers, now: float) -> None:
        """Give up connections whose nsqd does not answer. While any owes an answer, look again soon."""
        owing = False
        for endpoint, conn in takers:
            since = endpoint.silent_since
            owing = owing or since < math.inf or bool(conn.waiting)
            if now - since > PATIENCE:
                endpoint.give_up()
            elif now - since > BLOCKED_AFTER and not endpoint.number:
                self._note_blocked(endpoint.silent_about, endpoint.address)
        if owing:
            self.due_at = min(self.due_at, now + BLOCKED_AFTER)
        elif self._owing:
            self._pool.look_at_deadlines()
        self._owing = owing

    def _needs_lookup(self, place: Place) -> bool:
        name, partition = place
        topic = self._snapshots.topics.get(name)
        if topic is None or (not topic.live if partition is None else partition not in topic.takers):
            return True
        tried: Tries = self._parked[place][0].memory or NO_TRIES
        return bool(tried.lookup_after > self.lookups.cluster.asked_at(name))

    def _absent_leaders(self) -> Iterable[str]:
        """Yield the leaders that parked publishes wait for and that are not connected."""
        for name, partition in self._parked:
            topic = self._snapshots.topics.get(name)
            if topic is not None:
                leaders = topic.table.leaders
                some = leaders.values() if partition is None else [leaders.get(partition, "")]
                yield from (each for each in some if each and each not in self._snapshots.open)

    # Reports: any thread.

    def reason(self, publish: Publish) -> str:
        rules, name = publish.rules, publish.topic
        absence = self._pool.discovery.absence
        if self.kind == "original":
            return ""
        if self.kind is None:
            routed = isinstance(rules, PartitionRules)
            return f"no nsqlookupd has said which NSQ this is: {absence}" if routed else ""
        if not isinstance(rules, PartitionRules):
            return ""
        table = self.lookups.cluster.table(name)
        if not table.known:
            return f"no nsqlookupd has said which nsqds lead its partitions: {absence}{said(publish)}"
        away = [each.reason for each in self._pool.endpoints.all if not each.open]
        return rules.reason(publish, self._snapshots.disconnected(table), "; ".join(away))

    def problems(self) -> dict[str, str]:
        problems = dict(self._snapshots.moved)
        for (name, partition), (address, _) in self._blocked_partitions.endpoints.copy().items():
            problems[f"{name} {partition}"] = f"blocked: {address} does not answer about this partition"
        if self.kind is None and self._parked:
            problems["nsqlookupd"] = f"the kind of the cluster is unknown: {self._pool.discovery.absence}"
        for name in self.lookups.topics:
            table = self.lookups.cluster.table(name)
            if table.known and table.incomplete:
                problems[name] = f"incomplete: {table.problem}"
        return problems


def _no_deferring() -> UsageError:
    return UsageError("defer= is not possible here: a partitioned NSQ defers no messages")
