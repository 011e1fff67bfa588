"""The demonstration: the shop publishes, the services consume, and half-way one nsqd is killed."""

from __future__ import annotations

import time

from .cluster import Cluster
from .screen import Screen
from .services import Archive, Billing
from .shop import Shop
from .signals import Signals

GONE = 1.5
"""Seconds that the killed nsqd stays away."""
PATIENCE = 20.0
"""Seconds without progress after which missing events count as lost."""
GLANCE = 0.1


class Play:
    """One demonstration in a running cluster."""

    def __init__(self, cluster: Cluster, screen: Screen, signals: Signals, orders: int) -> None:
        self.published_after = self.took = self.outage = 0.0
        self._cluster = cluster
        self._screen = screen
        self._signals = signals
        self._killed_at = 0.0
        self.shop = Shop(cluster.tcp_addresses, orders)
        lookupd = cluster.nsqlookupd.http_address
        self.archive = Archive(lookupd, self.shop.events)
        self.billing = Billing(lookupd, self.shop.events)

    @property
    def services(self) -> list[Billing | Archive]:
        return [self.billing, self.archive]

    @property
    def lost(self) -> int:
        return sum(service.tally.lost for service in self.services)

    def describe(self) -> list[str]:
        """Explain the parts to readers who do not know topics and channels."""
        return [
            f"a web shop publishes {self.shop.events:,} events; each channel of the topic gets all of them:",
            *(f"{service.name:<10}  {service.work}" for service in self.services),
        ]

    def perform(self) -> None:
        began = time.monotonic()
        self.shop.open()
        done, since = 0, began
        while self.lost and time.monotonic() - since < PATIENCE:
            time.sleep(GLANCE)
            if self.shop.sold_out and not self.published_after:
                self.published_after = time.monotonic() - began
            self._disturb()
            if (now_done := self._show()) > done:
                done, since = now_done, time.monotonic()
        self.took = time.monotonic() - began
        self._bring_back()
        # A duplicate may still arrive.
        self._cluster.is_drained(timeout=5.0)
        self._screen.clear()

    def close(self) -> None:
        self.shop.close()
        for service in self.services:
            service.close()

    def abandon(self) -> None:
        """Close everything, and delete the incomplete archive."""
        self.close()
        self.archive.discard()

    def _disturb(self) -> None:
        if not self._killed_at and self.shop.published >= self.shop.events / 2:
            with self._signals.held():
                address = self._cluster.kill()
            self._killed_at = time.monotonic()
            self._screen.say(f"half-way: nsqd {address} is killed (SIGKILL); the other one goes on")
        elif self._killed_at and not self.outage and time.monotonic() - self._killed_at > GONE:
            self._bring_back()

    def _bring_back(self) -> None:
        if self._killed_at and not self.outage:
            with self._signals.held():
                self._cluster.revive()
            self.outage = time.monotonic() - self._killed_at
            self._screen.say(f"it is back after {self.outage:.1f} s, with everything that was on its disk")

    def _show(self) -> int:
        """Return the progress: an event counts when it is published, and once in each service."""
        handled = [service.tally.handled for service in self.services]
        counts = [self.shop.published, *handled]
        # All as wide as in the end, so that the line does not move.
        width = len(f"{self.shop.events:,}")
        published, billed, archived = (f"{count:>{width},}" for count in counts)
        share = sum(counts) / (len(counts) * self.shop.events)
        self._screen.show(share, f"{published} published, {billed} billed, {archived} archived")
        return sum(counts)
