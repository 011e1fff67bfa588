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
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, cast

from nsq.connection.endpoint import Key, Wanted
from nsq.discovery.directory import Kind
from nsq.discovery.lookups import Discovery
from nsq.errors import ExtNotSupported, NsqError, ServerError, Unanswered, UsageError
from nsq.log import Logger
from nsq.partitioned.blocked import BLOCKED_AFTER, Blocked, owes, silent_since
from nsq.partitioned.keys import Hash
from nsq.partitioned.lookups import Lookups
from nsq.partitioned.rules import (
    PATIENCE,
    UNPLACED,
    Particular,
    PartitionRules,
    particular,
    said,
    tries_of,
    unknown_topic,
)
from nsq.partitioned.snapshots import Place, Snapshots, TopicSnapshot, destination
from nsq.partitioned.tracing import Tracing, log_publish
from nsq.producer.answers import Rules
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.pool import Pool
from nsq.producer.publishes import (
    NO_OPTIONS,
    Defer,
    Maker,
    P,
    Publish,
    PublishOptions,
    checked_bodies,
    given_options,
)
from nsq.producer.routing import Plain, Route, Target, Targets
from nsq.wire import commands
from nsq.wire.names import check_topic

log = Logger("nsq.producer")

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


@dataclass(slots=True)
class Partition:
    """What is under way for one partition. The place without one stands for publishes to any partition, and
    for those that wait for their topic's table.
    """

    parked: list[Publish] = field(default_factory=list)
    """Publishes that wait, in the order of their calls."""
    tried_with: object = None
    """What was known when the parked ones were last tried."""
    retry_at: float = -math.inf
    """When to try them again, although nothing else is known."""
    burst: list[Publish] = field(default_factory=list)
    """Unanswered publishes of an ordered topic: the next ones must wait."""
    growing: bool = False
    """Whether the burst is being made."""
    held_since: float | None = None
    """Since when the publishes are held back, because a former leader owes an answer."""

    @property
    def hidden(self) -> bool:
        """Whether callers must not send to it, as others would be overtaken."""
        return bool(self.parked or self.burst) or self.held_since is not None

    def look_again(self) -> None:
        self.tried_with, self.retry_at = None, -math.inf


class Router:
    """Knows which nsqd leads which partition. In an original cluster ``Plain`` has its place."""

    patience = PATIENCE

    def __init__(
        self,
        pool: Pool,
        discovery: Discovery,
        *,
        key_hash: Hash | None = None,
        key_partitions: Mapping[str, int] | None = None,
        least_pending: bool = False,
        tracing: Tracing | None = None,
    ) -> None:
        setup, config = pool.setup, pool.setup.config
        pinned = cast("Kind | None", None if config.cluster == "detect" else config.cluster)
        self.lookups = Lookups(config, "w", pinned=pinned, clock=setup.clock)
        self.lookups.attach(discovery, pool.owner.ask, self._note_answer)
        for publish in pool.waiting.copy():
            self.lookups.learn(publish.topic)
        self.open: Targets = ()
        self.due_at = math.inf
        self.urgent = False
        self.awaits_ends = False
        self.kind: Kind | None = None
        self.key_hash = key_hash
        self.tracing = tracing or Tracing()
        self.now, self.chance = setup.clock, setup.chance
        self.topics: Mapping[str, TopicSnapshot] = {}
        """Snapshots for callers. Replaced, never changed."""
        self._targets: Mapping[str, Targets] = {}  # by destination; for callers, too
        self._pool, self._config, self._given = pool, config, setup.addresses
        self._snapshots = Snapshots(key_partitions or {}, in_turn=not least_pending)
        self._least_pending, self._plain = least_pending, Maker(config)
        self.rules: Rules = PartitionRules(self)
        # The pool's thread.
        self._busy: dict[Place, Partition] = {}
        self._last: dict[Place, PublishingEndpoint] = {}  # the leader that got the latest publish
        self._blocked = Blocked()
        self._named_turn = itertools.count()
        self._owing = False  # an nsqd owes an answer
        self._shown: object = None  # the places that callers do not see

    # Which NSQ it is: discovery's thread tells.

    def original(self) -> None:
        self._pool.owner.ask(partial(self._follow, "original"))

    # Making a publish: a user's thread.

    def route(self, topic: str) -> Route | None:
        known = self.topics.get(topic)
        if known is None or not known.destinations or topic in self.tracing.topics:
            return None
        where = known.destinations[next(known.turn) % len(known.destinations)]
        return where, self._targets.get(where, ())

    def targets(self, publish: Publish) -> Targets:
        return self._targets.get(publish.destination, ())

    def new_publish(
        self,
        make: type[P],
        topic: str,
        body: object,
        defer: Defer | None,
        options: PublishOptions = NO_OPTIONS,
    ) -> P:
        config = self._config
        # The usual case first: this runs for every message.
        known = self.topics.get(topic) if type(topic) is str else None
        if (
            known is not None
            and (destinations := known.destinations)
            and defer is None
            and not options
            and topic not in self.tracing.topics
            and type(body) is bytes
            and 0 < len(body) <= config.max_msg_size
        ):
            turn = next(known.turn)
            if len(self._pool.pending) > _MANY:
                turn //= _RUN
            publish = make(topic, body)
            publish.destination, publish.rules = destinations[turn % len(destinations)], self.rules
            return publish
        if defer is not None and self.kind is not None:
            raise _no_deferring()
        publish = self._plain.new_publish(make, topic, body, defer)
        given = given_options(options) if options else {}
        if publish.command is not None:  # deferred, and the kind of the cluster is not known yet
            publish.rules, publish.destination = self.rules, UNPLACED
            self.lookups.learn(publish.topic)
            return publish
        if not given and publish.topic not in self.tracing:
            publish.rules = self.rules
        else:
            publish.rules = particular(self, publish, [publish.body], given, config, several=False)
        self._place_now(publish)
        return publish

    def new_multi_publish(
        self,
        make: type[P],
        topic: str,
        bodies: Iterable[object],
        options: PublishOptions = NO_OPTIONS,
    ) -> P:
        config = self._config
        name = check_topic(topic)
        checked, size = checked_bodies(bodies, config)
        publish = make(name, b"")
        publish.messages, publish.size = len(checked), size
        publish.rules = particular(self, publish, checked, given_options(options), config, several=True)
        publish.command = commands.mpub(name, checked)  # until it is placed
        self._place_now(publish)
        return publish

    def trace(self, topic: str, on: bool) -> None:
        self.tracing.switch(check_topic(topic), on)

    def _place_now(self, publish: Publish) -> None:
        """Place a publish if its topic is known; else the pool's thread will."""
        topic = self.topics.get(publish.topic)
        rules = cast("PartitionRules", publish.rules)
        if topic is None:
            publish.destination = UNPLACED
            self.lookups.learn(publish.topic)
            return
        chosen = rules.choose(topic)
        if chosen is None and topic.live:
            chosen = self._pick(topic, topic.live)
        meta = topic.table.meta
        in_order = rules.keeps_order and meta is not None and meta.ordered and type(publish) is not Publish
        if chosen is None or in_order:  # the pool's thread sends futures of an ordered topic
            publish.destination = UNPLACED
        else:
            rules.place(publish, topic, chosen)

    def _pick(self, topic: TopicSnapshot, live: tuple[int, ...]) -> int:
        turn = next(topic.turn)
        first = live[turn % len(live)]
        if not self._least_pending or len(live) < 2:
            return first
        other = live[int(self.chance() * len(live)) % len(live)]
        targets = topic.targets
        loads = [_load(targets[each][0]) if each in targets else math.inf for each in (first, other)]
        return other if loads[1] < loads[0] else first

    def note_refusal(self, publish: Publish, error: ServerError, address: str) -> None:
        """Have a node left out that does not lead the partition. For the endpoints, and for callers."""
        _, _, partition = publish.destination.rpartition(" ")
        if not isinstance(error, ExtNotSupported) and partition.isdigit():
            where = publish.topic, int(partition), address
            self._pool.owner.ask(partial(self.lookups.refuse, *where, self.now()))

    def note_silence(self, destination: str, address: str) -> None:
        """Have the publishes of a partition kept apart, about which its leader is silent. For callers."""
        self._pool.owner.ask(partial(self._note_blocked, destination, address))

    def log_publish(self, publish: Publish, given: Mapping[str, Any]) -> None:
        """Log an answered publish, if its topic is traced. The pool's thread does it: logging takes locks."""
        endpoint = publish.endpoint
        if publish.topic in self.tracing and endpoint is not None:
            partition = int(publish.destination.rpartition(" ")[2])
            where = publish.topic, partition, endpoint.address, publish.published
            conn = endpoint.conn  # once: it may end meanwhile
            local_ip = None if conn is None else conn.local_ip
            tag, headers = given.get("tag"), given.get("headers")
            request = partial(log_publish, *where, local_ip=local_ip, tag=tag, headers=headers)
            self._pool.owner.ask(request)

    # The pool's thread.

    def _note_answer(self) -> None:
        """Follow the kind of the cluster, after an answer or a failure of an nsqlookupd."""
        self._follow(self.lookups.cluster.kind)
        self._pool.owner.wake()

    def assign(self, open_: Targets) -> bool:
        if self.kind is None:
            self._follow(self.lookups.cluster.kind)  # the user may have said it
        if self.kind == "original":
            return self._pool.routing.assign(open_)
        pool, waiting = self._pool, self._pool.waiting
        now = self.now()
        self._blocked.review(self._leader, pool.nsqds.endpoints.table.get, now)
        self._want_spares()
        self._let_go(now)
        self._update(open_)
        while True:
            while waiting:
                publish = waiting[0]
                if publish.done():
                    pool.pending.forget([publish])
                else:
                    self._send_or_park(publish, now)
                waiting.popleft()  # last: while ``waiting`` is not empty, newer publishes queue behind it
            self._release(now)
            self._show()
            if not waiting:  # else a publish came before callers could see the snapshots
                break
        self._look_ahead(now)
        self._watch(open_, now)
        return True

    def _follow(self, kind: Kind | None) -> None:
        """Take the place of ``Plain`` or leave it. Publishes that wait become those of the other NSQ."""
        if kind is None or kind == self.kind:
            return
        name = "a partitioned" if kind == "partitioned" else "the original"
        log.info("the nsqlookupds belong to %s NSQ", name)
        self.kind = kind
        pool = self._pool
        if kind != "original":
            pool.routing = self
            return
        self.due_at, self.urgent, self.awaits_ends = math.inf, False, False
        waiting = [publish for partition in self._busy.values() for publish in partition.parked]
        self._busy, self._last, self._snapshots.seen = {}, {}, None
        self.topics, self._targets, self._shown = {}, {}, None
        self._blocked.endpoints.clear()
        pool.nsqds.also_want({})
        pool.routing = plain = Plain(pool, self._config)  # first: publishes that come from now on are its own
        while pool.waiting:
            waiting.append(pool.waiting.popleft())
        for publish in waiting:
            plain.make_plain(publish)
        pool.waiting.extendleft(sorted(waiting, key=_started, reverse=True))

    def _want_spares(self) -> None:
        """Have an endpoint for each blocked partition. Others end when they owe nothing."""
        endpoints, more = self._pool.nsqds.endpoints, dict[Key, Wanted]()
        for address, number in self._blocked.endpoints.values():
            usual = endpoints.table.get((address, None))
            if usual is not None and usual.wanted is not None:
                spare = replace(usual.wanted, number=number)
                more[spare.key] = spare
        self._pool.nsqds.also_want(more)
        for endpoint in endpoints.all:
            if endpoint.number and endpoint.wanted is None and not endpoint.pending:
                endpoint.stop()

    def _at(self, place: Place) -> Partition:
        return self._busy.setdefault(place, Partition())

    def _send_or_park(self, publish: Publish, now: float) -> None:
        if isinstance(publish.rules, PartitionRules) and publish.rules.awaited:
            publish.rules.awaited = False  # it has come back
        place, target = self._find(publish, now)
        if place is None:
            return
        others_wait = place in self._busy and self._busy[place].parked
        if target is not None and not others_wait and not self._keeps_order(publish):
            self._pool.put(publish, target)
        else:
            self._park(publish, place)

    def _park(self, publish: Publish, place: Place) -> None:
        partition = self._at(place)
        parked = partition.parked
        if parked and parked[-1].started > publish.started:
            insort(parked, publish, key=_started)
        else:
            parked.append(publish)
        if parked[0] is publish or publish.memory is not None:
            partition.look_again()

    def _keeps_order(self, publish: Publish) -> bool:
        """Whether a publish must not leave before those that were sent to its partition have been answered:
        nsqd may refuse one, and take the next.
        """
        topic = self._snapshots.topics.get(publish.topic)
        meta = None if topic is None else topic.table.meta
        rules = publish.rules
        return meta is not None and meta.ordered and isinstance(rules, PartitionRules) and rules.keeps_order

    def _find(self, publish: Publish, now: float) -> tuple[Place | None, Target | None]:
        """Return where a publish belongs, and the connection that takes it now; no place if it has ended."""
        if self.kind is None:
            return self._find_given(publish)
        if not isinstance(publish.rules, PartitionRules):
            self._adopt(publish)
        if publish.command is not None and publish.command.startswith(_DPUB):
            return self._fail(publish, _no_deferring())
        rules, name = cast("PartitionRules", publish.rules), publish.topic
        tried = tries_of(publish)
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
                if not self._holds_back((name, each)) and topic.table.leaders[each] != resting
            )
            if not live or outdated:
                return (name, None), None
            chosen = self._pick(topic, live)
        rules.place(publish, topic, chosen)
        place = name, chosen
        partition = self._busy.get(place)
        waits = outdated or topic.table.leaders.get(chosen) == resting
        if partition is not None:
            behind = bool(partition.burst) and not partition.growing and self._keeps_order(publish)
            waits = waits or partition.held_since is not None or behind
        if waits:
            return place, None
        return place, topic.targets.get(chosen)

    def _holds_back(self, place: Place) -> bool:
        partition = self._busy.get(place)
        return partition is not None and (bool(partition.parked) or partition.held_since is not None)

    def _find_given(self, publish: Publish) -> tuple[Place | None, Target | None]:
        """While the kind of the cluster is not known, plain publishes may go to nsqds that the user named."""
        self.lookups.learn(publish.topic)
        place = publish.topic, None
        given = [self._snapshots.open[each] for each in self._given if each in self._snapshots.open]
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
            publish.rules = self.rules
        else:
            publish.rules = Particular(self, [], several=True, packed=command[command.index(b"\n") + 5 :])

    def _fail(self, publish: Publish, error: NsqError) -> tuple[None, None]:
        self._pool.refuse(publish, error)
        return None, None

    def _release(self, now: float) -> None:
        """Send parked publishes whose leader is there, in order."""
        known = self._snapshots.seen, self.lookups.cluster.version
        # First those that wait for any partition, or for their topic's table: they may queue behind others.
        for place in self._parked_at(placed=False):
            self._release_at(place, known, now)
        for place in self._parked_at(placed=True):
            self._release_at(place, known, now)
        # Those may have left a partition to the others.
        for place in self._parked_at(placed=False):
            if self._busy[place].tried_with is None:
                self._release_at(place, known, now)
        idle = [place for place, partition in self._busy.items() if not partition.hidden]
        for place in idle:
            del self._busy[place]

    def _parked_at(self, *, placed: bool) -> list[Place]:
        places = self._busy.items()
        return [place for place, each in places if each.parked and placed == (place[1] is not None)]

    def _look_again(self, place: Place) -> None:
        """Look again at the publishes of a partition, and at those that wait for any."""
        for each in (place, (place[0], None)):
            if each in self._busy:
                self._busy[each].look_again()

    def _release_at(self, place: Place, known: object, now: float) -> None:
        partition = self._busy[place]
        if partition.tried_with == known and now < partition.retry_at:
            return
        parked, partition.parked = partition.parked, []
        kept: list[Publish] = []
        burst, size = list[Publish](), 0
        for index, publish in enumerate(parked):
            if publish.done():
                self._pool.pending.forget([publish])
                continue
            found, target = self._find(publish, now)
            if found is None:
                continue
            in_order = self._keeps_order(publish)
            if found != place and (target is None or in_order):
                self._park(publish, found)
            elif target is None:
                kept.append(publish)
                if place[1] is not None:  # the others of this partition stay behind it
                    kept += parked[index + 1 :]
                    break
            elif not in_order:
                self._pool.put(publish, target)
            else:
                size += 4 + publish.size
                alone = publish.command is not None or (burst[-1:] and burst[-1].command is not None)
                if burst and (alone or len(burst) == _BURST_MESSAGES or size > _BURST_BYTES):
                    kept += parked[index:]
                    break
                burst.append(publish)
                partition.burst, partition.growing = burst, True
                self.awaits_ends = True  # first: its end may come at once
                cast("PartitionRules", publish.rules).awaited = True
                self._pool.put(publish, target)
        partition.growing = False
        partition.look_again()
        if not kept:
            self._look_again(place)
        else:
            partition.parked = sorted([*kept, *partition.parked], key=_started)
            retries = [tries_of(each).not_before for each in kept]
            partition.tried_with = known
            partition.retry_at = min((each for each in retries if each > now), default=math.inf)

    # Snapshots: what follows from tables and connections.

    def _update(self, open_: Targets) -> None:
        if self._snapshots.update(open_, self.lookups.cluster.tables, self._blocked.endpoints):
            self._shown = None
            self._note_moves()

    def _note_moves(self) -> None:
        """Hold publishes to a new leader back while the former one owes an answer, so that none overtakes; at
        first in any case: a caller may be about to send to the former one.
        """
        for name, topic in self._snapshots.topics.items():
            for number, (endpoint, _) in topic.targets.items():
                place = name, number
                if self._last.setdefault(place, endpoint) is endpoint:
                    continue
                partition = self._at(place)
                if partition.held_since is None:
                    partition.held_since = self.now()

    def _note_blocked(self, destination: str, address: str) -> None:
        """Note that a partition is blocked, if it is led there."""
        name, _, partition = destination.rpartition(" ")
        if self.kind != "partitioned" or not partition.isdigit():
            return
        place = name, int(partition)
        if self._leader(place) == address and self._blocked.add(place, address, self.now()):
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
        for place, partition in self._busy.items():
            rules = [cast("PartitionRules", each.rules) for each in partition.burst if not each.done()]
            if partition.burst and not any(each.awaited for each in rules):
                partition.burst = []
                partition.look_again()
                self._shown = None
            if partition.held_since is not None and not self._former_owes(place, partition.held_since, now):
                partition.held_since = None
                topic = self._snapshots.topics.get(place[0])
                target = None if topic is None or place[1] is None else topic.targets.get(place[1])
                if target is not None:
                    self._last[place] = target[0]
                self._look_again(place)
                self._shown = None
        self.awaits_ends = any(partition.burst for partition in self._busy.values())

    def _former_owes(self, place: Place, since: float, now: float) -> bool:
        """Whether a partition's former leader owes an answer. One that is silent for long is given up."""
        former = self._last[place]
        if not owes(former, destination(*place)) or now - since >= 3 * PATIENCE:
            return False
        if now - since > _FORMER_PATIENCE and now - silent_since(former) > _FORMER_PATIENCE:
            _give_up(former, now)
        return True

    def _show(self) -> None:
        """Let callers see the snapshots, but no partition where publishes wait: newer ones queue behind."""
        hidden = {place for place, each in self._busy.items() if each.hidden and place[1] is not None}
        if self._shown == hidden:
            return
        self._shown = hidden
        # First the topics: a destination that is not there any more makes a publish wait, a wrong one is
        # refused.
        topics, targets = self._snapshots.without(hidden)
        self.topics, self._targets = topics, targets

    def _look_ahead(self, now: float) -> None:
        """Have nsqlookupds asked and leaders dialed that publishes wait for; set when to assign next."""
        self._leave_unreachable(now)
        waits = any(self._absent_leaders()) or any(self._needs_lookup(place) for place in self._all_parked())
        self.urgent = waits
        due = self.lookups.refresh(now, urgent=waits, incomplete=self._snapshots.incomplete)
        parked = [self._busy[place] for place in self._all_parked()]
        self.due_at = min([due, *[each.retry_at for each in parked if each.tried_with is not None]])
        if any(each.held_since is not None for each in self._busy.values()):
            self.due_at = min(self.due_at, now + _HOLD)
        if self._blocked.endpoints:
            self.due_at = min(self.due_at, now + 1.0)  # to let them share a connection again

    def _all_parked(self) -> list[Place]:
        return [place for place, each in self._busy.items() if each.parked]

    def _leave_unreachable(self, now: float) -> None:
        """Leave out the leaders that cannot be reached where an nsqlookupd names another node."""
        cluster = self.lookups.cluster
        for name, wanted in self._all_parked():
            leaders = cluster.table(name).leaders
            for partition in leaders if wanted is None else [wanted]:
                leader = leaders.get(partition, "")
                endpoint = self._pool.nsqds.endpoints.table.get((leader, None))
                unreachable = endpoint is not None and not endpoint.open and endpoint.backoff.failures > 0
                if unreachable and cluster.is_disputed(name, partition):
                    self.lookups.refuse(name, partition, leader, now)
                    self._pool.owner.wake()

    def _watch(self, open_: Targets, now: float) -> None:
        """Give up connections whose nsqd does not answer. While any owes an answer, look again soon."""
        owing = False
        for endpoint, conn in open_:
            since = silent_since(endpoint)
            owing = owing or since < math.inf or bool(conn.waiting)
            if now - since > PATIENCE:
                _give_up(endpoint, now)
            elif now - since > BLOCKED_AFTER and not endpoint.number:
                oldest = next((batch[0].destination for batch in endpoint.sent.copy()), "")
                self._note_blocked(oldest, endpoint.address)
        if owing:
            self.due_at = min(self.due_at, now + BLOCKED_AFTER)
        elif self._owing:
            self._pool.look_at_deadlines()
        self._owing = owing

    def _needs_lookup(self, place: Place) -> bool:
        name, partition = place
        topic = self._snapshots.topics.get(name)
        if topic is None or (not topic.live if partition is None else partition not in topic.targets):
            return True
        tried = tries_of(self._busy[place].parked[0])
        return tried.lookup_after > self.lookups.cluster.asked_at(name)

    def _absent_leaders(self) -> Iterable[str]:
        """Yield the leaders that parked publishes wait for and that are not connected."""
        for name, partition in self._all_parked():
            topic = self._snapshots.topics.get(name)
            if topic is not None:
                leaders = topic.table.leaders
                some = leaders.values() if partition is None else [leaders.get(partition, "")]
                yield from (each for each in some if each and each not in self._snapshots.open)

    # Reports: any thread.

    def reason(self, publish: Publish) -> str:
        rules, name = publish.rules, publish.topic
        absence = self._pool.nsqds.discovery.absence
        if self.kind is None:
            routed = isinstance(rules, PartitionRules)
            return f"no nsqlookupd has said which NSQ this is: {absence}" if routed else ""
        if not isinstance(rules, PartitionRules):
            return ""
        table = self.lookups.cluster.table(name)
        if not table.known:
            return f"no nsqlookupd has said which nsqds lead its partitions: {absence}{said(publish)}"
        away = [each.reason for each in self._pool.nsqds.endpoints.all if not each.open]
        return rules.reason(publish, self._snapshots.disconnected(table), "; ".join(away))

    def problems(self) -> dict[str, str]:
        problems = dict(self._snapshots.moved)
        for (name, partition), (address, _) in self._blocked.endpoints.copy().items():
            problems[f"{name} {partition}"] = f"blocked: {address} does not answer about this partition"
        if self.kind is None and any(each.parked for each in self._busy.copy().values()):
            absence = self._pool.nsqds.discovery.absence
            problems["nsqlookupd"] = f"the kind of the cluster is unknown: {absence}"
        for name in self.lookups.topics:
            table = self.lookups.cluster.table(name)
            if table.known and table.incomplete:
                problems[name] = f"incomplete: {table.problem}"
        return problems


def _no_deferring() -> UsageError:
    return UsageError("defer= is not possible here: a partitioned NSQ defers no messages")


def _load(endpoint: PublishingEndpoint) -> int:
    """Return roughly how many answers an nsqd owes; cheaper to count than ``pending``."""
    waiting = len(endpoint.conn.waiting) if endpoint.conn is not None else 0
    return waiting + len(endpoint.sent) + endpoint.own.busy


def _give_up(endpoint: PublishingEndpoint, now: float) -> None:
    silent = f"{endpoint.address} has not answered for {now - endpoint.asked_at:.1f} s"
    endpoint.break_off(Unanswered(silent))
