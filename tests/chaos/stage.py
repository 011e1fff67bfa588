"""The stage of the chaos tests of clients: two nsqds, an nsqlookupd, publishers and subscribers in
processes of their own, a network between them, and all faults.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nsq.testing import Link, Network, Nsqd, Nsqlookupd
from nsq.testing.network import KINDS, Fault, Strike
from nsq.testing.plugin import Factory
from tests.chaos.actors import Actor
from tests.chaos.disks import Disk, make_disk
from tests.integration.authority import Authority

TOPIC, CHANNEL = "orders", "billing"
MSG_TIMEOUT = 3.0
#: Short, so that much can happen in a minute.
COMMON: dict[str, Any] = {
    "dial_timeout": 1.0,
    "handshake_timeout": 3.0,
    "read_timeout": 2.5,
    "heartbeat_interval": 1.0,
    "write_timeout": 2.0,
    "reconnect_initial": 0.05,
    "reconnect_max": 0.5,
    "lookupd_poll_interval": 0.5,
    "lookupd_poll_timeout": 1.0,
}
CONSUMING: dict[str, Any] = {
    "max_in_flight": 60,
    "max_attempts": 0,
    "default_requeue_delay": 0.1,
    "max_requeue_delay": 0.5,
    "backoff_multiplier": 0.02,
    "max_backoff_duration": 0.2,
}
NETWORK_KINDS = {
    "cut": 4,
    "reset": 4,
    "half-close": 2,
    "half-open": 3,
    "stall": 4,
    "delay": 2,
    "throttle": 2,
    "truncate": 4,
    "corrupt": 2,
    "refuse": 1,
    "ignore": 1,
    "swallow": 1,
}
CLIENT_KINDS = {"kill subscriber": 2, "kill publisher": 2, "stop subscriber": 2, "close publisher": 2}
LOOKUP_KINDS = {"restart nsqlookupd": 1}
NSQD_KINDS = {"kill nsqd": 2, "restart nsqd": 1, "fill disk": 2}
_STOP_TIMEOUTS = (0.0, 0.1, 0.5, 2.0, 5.0)


class Stage:
    """All processes of a test. ``steady``: the daemons are not ours, and need not survive a kill or a full
    disk.
    """

    def __init__(
        self,
        seed: str,
        directory: Path,
        nsqds: Factory[Nsqd],
        nsqlookupds: Factory[Nsqlookupd],
        *,
        pace: float,
        steady: bool,
    ) -> None:
        self.seed = seed
        self.struck: list[str] = []
        """The kinds of the faults so far."""
        self.actors: list[Actor] = []
        self.links: dict[tuple[str, int], Link] = {}
        self._directory = directory
        self._chance = random.Random(f"{seed} stage")
        self._numbers = itertools.count(1)
        self._stack = ExitStack()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._pace = pace
        self._steady = steady
        self._authority = Authority(directory)
        try:
            self._build(nsqds, nsqlookupds)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stack.close()

    # Building.

    def _build(self, nsqds: Factory[Nsqd], nsqlookupds: Factory[Nsqlookupd]) -> None:
        self.network = self._stack.enter_context(Network(self.seed))
        self.nsqlookupd = nsqlookupds(process=True)
        self.lookup_link = self.network.link(self.nsqlookupd.http_address)
        registering = self.network.link(self.nsqlookupd.tcp_address)
        self._lookup_links = [self.lookup_link, registering]
        self.disks = [self._disk(f"disk-{number}") for number in range(2)]
        durable = {} if self._steady else {"durable": True}
        self.nsqds = [
            nsqds(
                process=True,
                lookupd=[registering.address],
                data_path=disk.place,
                mem_queue_size=2000,
                max_bytes_per_file=2_000_000,
                msg_timeout=MSG_TIMEOUT,
                sync_timeout=0.1,
                log_level="warn",
                **durable,
                **self._authority.server_options,
            )
            for disk in self.disks
        ]
        for nsqd in self.nsqds:
            assert nsqd.post(f"/topic/create?topic={TOPIC}").status == 200
            assert nsqd.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}").status == 200
        tls = {"tls": True, "tls_ca_file": str(self._authority.certificate)}
        self._publisher("plain-publisher", {})
        self._publisher("tls-publisher", {**tls, "snappy": True})
        self._subscriber("plain-subscriber", {})
        self._subscriber("finding-subscriber", {"deflate": True}, finding=True)
        self._subscriber("tls-subscriber", {**tls, "snappy": True})
        for actor in self.actors:
            self._start(actor)

    def _disk(self, name: str) -> Disk:
        disk = make_disk(self._directory / name)
        self._stack.callback(disk.remove)
        return disk

    def _linked(self, name: str) -> list[str]:
        for number, nsqd in enumerate(self.nsqds):
            self.links[name, number] = self.network.link(nsqd.tcp_address)
        return [self.links[name, number].address for number in range(len(self.nsqds))]

    def _publisher(self, name: str, options: dict[str, Any]) -> None:
        plan = {
            "seed": self.seed,
            "topic": TOPIC,
            "nsqd": self._linked(name),
            "pace": self._pace,
            "options": {**COMMON, "publish_timeout": 5.0, "max_pending": 500, **options},
        }
        self._add(Actor(name, "publisher", plan, self._directory))

    def _subscriber(self, name: str, options: dict[str, Any], *, finding: bool = False) -> None:
        plan = {
            "seed": self.seed,
            "topic": TOPIC,
            "channel": CHANNEL,
            "nsqd": self._linked(name),
            "real": [nsqd.tcp_address for nsqd in self.nsqds],
            "nsqlookupd": [self.lookup_link.address] if finding else [],
            "msg_timeout": MSG_TIMEOUT,
            "options": {**COMMON, **CONSUMING, **options},
        }
        self._add(Actor(name, "subscriber", plan, self._directory))

    def _add(self, actor: Actor) -> None:
        self.actors.append(actor)
        self._stack.callback(actor.end)

    def _start(self, actor: Actor) -> None:
        actor.start(next(self._numbers))

    @property
    def publishers(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.consumes]

    @property
    def subscribers(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.consumes]

    @property
    def kinds(self) -> dict[str, float]:
        return {**NETWORK_KINDS, **CLIENT_KINDS, **LOOKUP_KINDS, **({} if self._steady else NSQD_KINDS)}

    # Faults.

    def wait(self, seconds: float) -> None:
        """Wait, and end the faults whose time is over meanwhile."""
        until = time.monotonic() + seconds
        while True:
            due = min(until, self._later[0][0]) if self._later else until
            time.sleep(max(0.0, due - time.monotonic()))
            if self._later and self._later[0][0] <= time.monotonic():
                heapq.heappop(self._later)[2]()
            elif time.monotonic() >= until:
                return

    def strike(self, strike: Strike) -> None:
        kind = strike.fault.kind
        if kind in KINDS:
            self._strike_network(strike)
        else:
            self._daemons_and_clients()[kind](strike)
        self.struck.append(kind)

    def _strike_network(self, strike: Strike) -> None:
        choices = list(self.links.values()) + self._lookup_links
        if strike.fault.kind == "corrupt":  # elsewhere than under TLS a flipped bit would be delivered
            choices = [link for (name, _), link in self.links.items() if name.startswith("tls-")]
        self.network.strike(strike, strike.one_of(choices))

    def _daemons_and_clients(self) -> dict[str, Callable[[Strike], None]]:
        return {
            "kill subscriber": lambda strike: self._kill(strike.one_of(self.subscribers)),
            "kill publisher": lambda strike: self._kill(strike.one_of(self.publishers)),
            "stop subscriber": lambda strike: self._stop(strike.one_of(self.subscribers)),
            "close publisher": lambda strike: self._stop(strike.one_of(self.publishers)),
            "restart nsqlookupd": self._restart_nsqlookupd,
            "kill nsqd": lambda strike: self._restart_nsqd(strike, Nsqd.kill),
            "restart nsqd": lambda strike: self._restart_nsqd(strike, Nsqd.terminate),
            "fill disk": self._fill_disk,
        }

    def _kill(self, actor: Actor) -> None:
        actor.kill()
        self._start(actor)

    def _stop(self, actor: Actor) -> None:
        actor.ask_to_stop(self._chance.choice(_STOP_TIMEOUTS))
        self._start(actor)

    def _restart_nsqlookupd(self, _strike: Strike) -> None:
        self.nsqlookupd.kill()
        self.nsqlookupd.start()

    def _restart_nsqd(self, strike: Strike, end: Callable[[Nsqd], object]) -> None:
        number = strike.one_of(range(len(self.nsqds)))
        nsqd = self.nsqds[number]
        end(nsqd)
        self.disks[number].free(nsqd)
        nsqd.start()

    def _fill_disk(self, strike: Strike) -> None:
        number = strike.one_of(range(len(self.nsqds)))
        nsqd, disk = self.nsqds[number], self.disks[number]
        disk.fill(nsqd)
        due = time.monotonic() + strike.fault.seconds
        heapq.heappush(self._later, (due, len(self.struck), lambda: disk.free(nsqd)))

    @property
    def description(self) -> str:
        """The state of all processes, to find out why a test failed."""
        words = []
        for number, nsqd in enumerate(self.nsqds):
            stats = nsqd.get(f"/stats?format=json&topic={TOPIC}").text if nsqd.running else "not running"
            words += [f"nsqd {number}: {stats}", nsqd.log[-3000:]]
        for actor in self.actors:
            words.append(f"{actor.name}: {actor.stderr[-1500:]}")
        return "\n".join(words)

    def heal(self) -> None:
        self.network.inflict(Fault("heal"))
        for nsqd, disk in zip(self.nsqds, self.disks, strict=True):
            disk.free(nsqd)
        self._later.clear()
