"""Blocked partitions of a producer: their leader waits for a replica, and executes nothing that is behind on
the same connection. Each gets an endpoint of its own at that nsqd, so that it holds up no other partition.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from nsq.errors import Unanswered
from nsq.producer.endpoint import PublishingEndpoint

#: Seconds without an answer about a partition after which it counts as blocked.
BLOCKED_AFTER = 0.25
#: Seconds that it keeps its endpoint at least, and at most while nothing is sent to it.
AT_LEAST, UNUSED = 5.0, 30.0
#: Seconds without another try after one that could not be connected.
_REFUSED = 30.0
#: The most of them at one nsqd.
_MOST = 8


def silent_since(endpoint: PublishingEndpoint) -> float:
    """Return when nsqd last answered a publish, or got the oldest that it has not answered; infinity: it owes
    nothing.
    """
    return endpoint.asked_at if endpoint.sent else math.inf


def owes(endpoint: PublishingEndpoint, destination: str) -> bool:
    """Whether nsqd has a publish to this destination that has not ended, unsent or unanswered. Round trips do
    not count: their callers wait, and publish nothing meanwhile.
    """
    unsent = endpoint.conn.waiting.copy() if endpoint.conn is not None else ()
    sent = [each for batch in endpoint.sent.copy() if batch[0].destination == destination for each in batch]
    waiting = [item for item in unsent if type(item) is not bytes and item.destination == destination]
    return not all(publish.done() for publish in (*sent, *waiting))


class Blocked:
    """Only the pool's thread uses it."""

    def __init__(self) -> None:
        self.endpoints: dict[tuple[str, int], tuple[str, int]] = {}
        """By partition: its leader's address, and the number of the endpoint there."""
        self._numbers = itertools.count(1)
        self._since: dict[tuple[str, int], float] = {}
        self._not_before: dict[tuple[str, int], float] = {}

    def add(self, place: tuple[str, int], leader: str, now: float) -> bool:
        """Give a partition an endpoint; return whether it has got a new one."""
        there = sum(address == leader for address, _ in self.endpoints.values())
        if place in self.endpoints or there >= _MOST or now < self._not_before.get(place, now):
            return False
        # A new number: the endpoint of a former one may not have ended yet.
        self.endpoints[place], self._since[place] = (leader, next(self._numbers)), now
        return True

    def review(
        self,
        leader_of: Callable[[tuple[str, int]], str],
        endpoint_of: Callable[[tuple[str, int]], PublishingEndpoint | None],
        now: float,
    ) -> None:
        """Take the endpoints of those that store again, of those that another nsqd leads, and endpoints that
        are not used or cannot be connected.
        """
        for place, where in self.endpoints.copy().items():
            endpoint, seconds = endpoint_of(where), now - self._since[place]
            stores = (
                endpoint is not None
                and (endpoint.has_stored or endpoint.own.published > 0)
                and now - silent_since(endpoint) < BLOCKED_AFTER
                and seconds > AT_LEAST
            )
            unused = seconds > UNUSED and (endpoint is None or not endpoint.pending)
            reason = None if endpoint is None else endpoint.backoff.reason
            refused = reason is not None and not isinstance(reason, Unanswered)
            if refused:
                self._not_before[place] = now + _REFUSED
            if stores or unused or refused or leader_of(place) != where[0]:
                del self.endpoints[place], self._since[place]
