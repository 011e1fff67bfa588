"""One nsqlookupd, two nsqds and an nsqadmin on free ports of 127.0.0.1, each a process of its own."""

from __future__ import annotations

import time
from contextlib import ExitStack

from nsq.testing import Nsqadmin, Nsqd, Nsqlookupd

TOPIC = "orders"
CHANNELS = ("billing", "archive")


class Cluster:
    """Starts and stops all daemons. The second nsqd can be killed, and restarts on the same ports."""

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
            # A channel gets only messages published after its creation, so create both before the first
            # order.
            nsqd.post(f"/topic/create?topic={TOPIC}")
            for channel in self._channels:
                nsqd.post(f"/channel/create?topic={TOPIC}&channel={channel}")

    def show(self) -> None:
        """Start nsqadmin."""
        self.nsqadmin = self._running.enter_context(Nsqadmin(process=True, lookupd=[self.nsqlookupd]))

    def stop(self) -> None:
        self._running.close()

    @property
    def tcp_addresses(self) -> list[str]:
        return [nsqd.tcp_address for nsqd in self.nsqds]

    def describe(self) -> list[str]:
        page = [f"nsqadmin    http://{self.nsqadmin.http_address}/"] if self.nsqadmin else []
        return [
            f"{daemon.program:<10}  tcp {daemon.tcp_address}  http {daemon.http_address}"
            for daemon in (self.nsqlookupd, *self.nsqds)
        ] + page

    def kill(self) -> str:
        """Kill the second nsqd with SIGKILL; return its address."""
        victim = self.nsqds[-1]
        victim.kill()
        return victim.tcp_address

    def revive(self) -> None:
        self.nsqds[-1].start()

    def is_drained(self, timeout: float) -> bool:
        """Wait until the services' channels are empty; return whether they are within the time."""
        deadline = time.monotonic() + timeout
        while held := sum(map(_held, self.nsqds)):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return not held


def durable_nsqd(node_id: int, nsqlookupd: Nsqlookupd) -> Nsqd:
    """A durable nsqd: a SIGKILL loses no confirmed message."""
    return Nsqd(
        process=True,
        durable=True,
        # After a crash nsqd repeats messages finished since its last sync: sync often.
        sync_timeout=0.1,
        node_id=node_id,
        lookupd=[nsqlookupd],
    )


def _held(nsqd: Nsqd) -> int:
    """Count messages that wait, are in flight or are deferred."""
    (topic,) = nsqd.get(f"/stats?format=json&topic={TOPIC}").json()["topics"]
    counts = ("depth", "in_flight_count", "deferred_count")
    channels = (channel for channel in topic["channels"] if channel["channel_name"] in CHANNELS)
    return sum(channel[count] for channel in channels for count in counts)
