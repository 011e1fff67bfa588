"""Which nsqds take which publishes: the seam between the original NSQ and others.

``Routing`` says all that another NSQ changes for a producer, together with ``Rules``, which say what answers
mean. It is implemented by ``Plain`` below, for which any nsqd takes any publish, and by the ``Router`` of
``nsq.partitioned``, which knows the leader of each partition. A producer begins with ``Plain``. The other one
takes its place when it is made, and ``Plain`` comes back if this turns out to be the original NSQ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from nsq.config import Config
from nsq.connection.conn import Conn
from nsq.discovery.lookups import Asker, Discovery
from nsq.errors import UsageError
from nsq.log import Logger
from nsq.producer.answers import PLAIN, Rules
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.publishes import Defer, Maker, P, Publish, PublishOptions, checked_topic, refused_option

if TYPE_CHECKING:
    from nsq.producer.pool import Pool

log = Logger("nsq.producer")

#: An nsqd and its open connection. Pairs: an endpoint's next connection is used only after what is left of
#: this one has been taken back.
Target = tuple[PublishingEndpoint, Conn]
Targets = tuple[Target, ...]


#: Where a message goes that may be sent at once: the words after PUB, and the connections that may take it.
Route = tuple[str, Targets]


class Routing(Protocol):
    """Decides for one pool which connections take a publish.

    Callers of the producer call ``route``, ``new_publish``, ``new_multi_publish``, ``targets`` and ``trace``,
    which take no lock. The pool's thread calls ``assign``.
    """

    open: Targets
    """The connections that take a publish of the original NSQ; none with another. Replaced, never changed.
    """
    due_at: float
    """When to assign again, unless something happens before."""
    rules: Rules
    """Those of a message without options."""
    urgent: bool
    """Whether a publish waits for a connection to a particular nsqd."""
    awaits_ends: bool
    """Whether ``assign`` must be called when a publish ends."""

    @property
    def patience(self) -> float:
        """Seconds after which a connection without an answer is given up, if nothing else limits the wait."""

    def route(self, topic: str) -> Route | None:
        """Return where a message without options goes now; None: make a ``Publish``."""

    def new_publish(
        self, make: type[P], topic: str, body: object, defer: Defer | None, options: PublishOptions
    ) -> P:
        """Make a publish of one message, or raise UsageError."""

    def new_multi_publish(
        self, make: type[P], topic: str, bodies: Iterable[object], options: PublishOptions
    ) -> P:
        """Make a publish of several messages, or raise UsageError."""

    def targets(self, publish: Publish) -> Targets:
        """Return the connections that may take another NSQ's publish now; none: leave it to ``assign``."""

    def trace(self, topic: str, on: bool) -> None:
        """Switch tracing of a topic on or off."""

    def assign(self, open_: Targets) -> bool:
        """Give the pool's waiting publishes to these connections. Return False if there is no connection, and
        the pool must see to publishes that wait for any.
        """

    def reason(self, publish: Publish) -> str:
        """Return why the publish has not found its nsqd; empty if any would do."""

    def problems(self) -> dict[str, str]:
        """Return what is wrong, by name, for ``Producer.health``."""


class OtherRouting(Routing, Protocol):
    """The one of another NSQ. It is made when an nsqlookupd belongs to that NSQ; or before any has said so,
    when a publish has options that only such an NSQ has, and waits.
    """

    @property
    def lookups(self) -> Asker:
        """Asks the nsqlookupds of the other NSQ."""

    def original(self) -> None:
        """Have ``Plain`` take its place: the nsqlookupds belong to the original NSQ."""


#: Makes the routing of another NSQ for a pool.
NewOther = Callable[["Pool", Discovery], OtherRouting]


class Detection:
    """Which NSQ this is, and so which routing a pool has. Discovery's thread tells, once an nsqlookupd has
    said it. ``new_other`` is None if it can only be the original one.
    """

    def __init__(self, pool: Pool, new_other: NewOther | None) -> None:
        self._pool, self._new_other = pool, new_other
        self._others: list[OtherRouting] = []  # two threads may make one; the first counts
        self._warned = False

    def warn_of_partitions(self, address: str, version: str) -> None:
        """Warn once that an nsqd belongs to another NSQ than the publishes. Endpoints' threads call this."""
        decided = self._new_other is None or self._pool.nsqds.discovery.kind is not None
        if decided and isinstance(self._pool.routing, Plain) and not self._warned:
            self._warned = True
            log.warning(
                "%s is nsqd %s of a partitioned NSQ, but this producer takes it for an original one, and "
                "publishes to its default partition. Give nsqlookupd= instead of nsqd addresses",
                address,
                version,
                extra={"nsqd_address": address},
            )

    def with_options(self) -> Routing:
        """Return the routing for a publish with options. While it is not known which NSQ this is, it is that
        of the other one, where such a publish waits. Any thread may call this.
        """
        return self._expect_other(self._pool.nsqds.discovery)

    def is_other(self, discovery: Discovery) -> Asker:
        """Note that this is another NSQ; return what asks its nsqlookupds."""
        self._expect_other(discovery)
        return self._other(discovery).lookups

    def is_original(self) -> None:
        for other in self._others[:1]:
            other.original()

    def _expect_other(self, discovery: Discovery) -> Routing:
        pool = self._pool
        if self._new_other is not None and discovery.kind is None and isinstance(pool.routing, Plain):
            pool.routing = self._other(discovery)
            if discovery.kind == "original":  # said before ``is_original`` could see the other one
                self.is_original()
        return pool.routing

    def _other(self, discovery: Discovery) -> OtherRouting:
        if not self._others:
            assert self._new_other is not None
            self._others.append(self._new_other(self._pool, discovery))
        return self._others[0]


class Plain(Maker):
    """The original NSQ: any nsqd takes any publish."""

    rules = PLAIN
    due_at = patience = math.inf
    urgent = awaits_ends = False

    def __init__(self, pool: Pool, config: Config) -> None:
        super().__init__(config)
        self.open: Targets = ()
        self._pool, self._turn = pool, itertools.count()

    # Callers.

    def route(self, topic: str) -> Route | None:
        return checked_topic(topic), self.open

    def targets(self, publish: Publish) -> Targets:
        self.make_plain(publish)
        return self.open

    def trace(self, topic: str, on: bool) -> None:
        raise refused_option("trace")

    # The pool's thread.

    def assign(self, open_: Targets) -> bool:
        usable = tuple(each for each in open_ if not each[0].overdue) or open_
        if usable:
            self._hand_out(usable)
        self.open = usable
        if usable:
            self._hand_out(usable)  # a publish may have come between the lines above
        return bool(usable)

    def _hand_out(self, usable: Targets) -> None:
        waiting = self._pool.waiting
        while waiting:
            publish = waiting[0]
            self.make_plain(publish)
            if publish.done():
                self._pool.pending.forget([publish])
            else:
                self._pool.put(publish, usable[next(self._turn) % len(usable)])
            waiting.popleft()  # last: while ``waiting`` is empty, newer publishes overtake

    def make_plain(self, publish: Publish) -> None:
        """Take over a publish made for another NSQ; end it with an error if only that one can store it."""
        if publish.rules is not PLAIN and not publish.done():
            try:
                publish.rules.place_plainly(publish)
            except UsageError as error:
                self._pool.refuse(publish, error)

    # Reports.

    def reason(self, publish: Publish) -> str:
        return ""

    def problems(self) -> dict[str, str]:
        return {}
