"""One nsqlookupd, two nsqds and an nsqadmin on free ports of 127.0.0.1, each a process of its own."""

from __future__ import annotations

import time
from contextlib import ExitStack

from nsq.testing import Nsqadmin, Nsqd, Nsqlookupd

TOPIC = "orders"
CHANNELS = ("billing", "archive")


class Cluster:
    """Started and stopped as one; the second nsqd can be killed and comes back where it was."""

    def __init__(self, *more_channels: str) -> None:
        self._channels = (*CHANNELS, *more_channels)
        self.nsqlookupd = Nsqlookupd(process=True)
        self.nsqds: list[Nsqd] = []
        self.nsqadmin: Nsqadmin | None = None
        self._running = ExitStack()

    def start(self) -> None:
        self._running.enter_context(self.nsqlookupd)
        for node_id in (1, 2):
            nsqd = durable_nsqd(node_id, self.nsqlookupd)
            self.nsqds.append(self._running.enter_context(nsqd))
            # A channel gets what is published after it was made, so both are made before the first order.
            nsqd.post(f"/topic/create?topic={TOPIC}")
            for channel in self._channels:
                nsqd.post(f"/channel/create?topic={TOPIC}&channel={channel}")

    def show(self) -> str:
        """Start nsqadmin, unless it runs; the address of its page."""
        if self.nsqadmin is None:
            self.nsqadmin = self._running.enter_context(Nsqadmin(process=True, lookupd=[self.nsqlookupd]))
        return f"http://{self.nsqadmin.http_address}/"

    def stop(self) -> None:
        self._running.close()

    @property
    def tcp_addresses(self) -> list[str]:
        return [nsqd.tcp_address for nsqd in self.nsqds]

    def describe(self) -> list[str]:
        return [
            f"{daemon.program:<10}  tcp {daemon.tcp_address}  http {daemon.http_address}"
            for daemon in (self.nsqlookupd, *self.nsqds)
        ]

    def kill(self) -> str:
        """SIGKILL for the second nsqd, which has no time to say goodbye; its address."""
        victim = self.nsqds[-1]
        victim.kill()
        return victim.tcp_address

    def revive(self) -> None:
        self.nsqds[-1].start()

    def is_drained(self, timeout: float) -> bool:
        """Whether the services' channels hold no message any more within the time."""
        deadline = time.monotonic() + timeout
        while held := sum(map(_held, self.nsqds)):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return not held


def durable_nsqd(node_id: int, nsqlookupd: Nsqlookupd) -> Nsqd:
    """What it has confirmed is on its disk, and a SIGKILL cannot take it away again."""
    return Nsqd(
        process=True,
        durable=True,
        # What was finished since it last noted so on disk is repeated after a crash: let that be little.
        sync_timeout=0.1,
        node_id=node_id,
        lookupd=[nsqlookupd],
    )


def _held(nsqd: Nsqd) -> int:
    """Messages that wait, are being handled, or are to be tried again later."""
    (topic,) = nsqd.get(f"/stats?format=json&topic={TOPIC}").json()["topics"]
    counts = ("depth", "in_flight_count", "deferred_count")
    channels = (channel for channel in topic["channels"] if channel["channel_name"] in CHANNELS)
    return sum(channel[count] for channel in channels for count in counts)
