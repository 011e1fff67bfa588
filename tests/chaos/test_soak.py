"""A steady load for a long time, with connections that are cut: memory, threads and descriptors do not
grow.

make soak SOAK=600       # seconds; half an hour without it
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import nsq
from nsq.daemons.nsqd.stats import Memory
from nsq.testing import Network, Nsqd
from nsq.testing.network import Link
from nsq.testing.plugin import Factory
from tests.chaos.telling import Tell
from tests.integration.patience import eventually

_RATE = 500  # messages a second, about
_WARM_UP = 0.25  # of the time, or a minute
_OPTIONS: dict[str, Any] = {
    "heartbeat_interval": 1.0,
    "read_timeout": 2.5,
    "reconnect_initial": 0.05,
    "reconnect_max": 0.5,
}


def flat(values: Sequence[float], slack: float) -> bool:
    """Whether the average of the last quarter is at most that of the first plus ``slack``."""
    quarter = max(1, len(values) // 4)
    return sum(values[-quarter:]) / quarter <= sum(values[:quarter]) / quarter + slack


def test_flat_tells_a_leak_from_none() -> None:
    assert flat([5, 6, 5, 6, 5, 6, 5, 6], 0.6)
    assert not flat([1, 2, 3, 4, 5, 6, 7, 8], 3)


@dataclass
class Samples:
    """Once a second: of this process, which is where the client works."""

    memory: list[float] = field(default_factory=list)
    threads: list[float] = field(default_factory=list)
    descriptors: list[float] = field(default_factory=list)
    handled: list[float] = field(default_factory=list)

    def take(self, handled: int) -> None:
        self.memory.append(Memory().figures()["heap_in_use_bytes"] / 1e6)
        self.threads.append(threading.active_count())
        self.descriptors.append(len(os.listdir("/proc/self/fd")))
        self.handled.append(handled)

    def settled(self) -> Samples:
        """The figures without the warm-up and the last second."""
        begin = int(min(60, len(self.memory) * _WARM_UP))
        return Samples(*(values[begin:-1] for values in vars(self).values()))

    @property
    def last(self) -> str:
        return (
            f"{self.memory[-1]:.0f} MB, {self.threads[-1]:.0f} threads, {self.descriptors[-1]:.0f} fds, "
            f"{self.handled[-1]:,.0f} messages"
        )


class Load:
    """Publishes at a steady rate whatever happens, and counts what is handled."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.ended = threading.Event()
        self.confirmed = 0
        self.repeated = 0
        self.handled = 0
        self._lock = threading.Lock()  # guards the counts of what was handled
        self._all_below = 0  # handled, each of them
        self._ahead: set[int] = set()  # handled, beyond that
        self._thread = threading.Thread(target=self._publish, name="soak-publisher")

    @contextmanager
    def running(self) -> Iterator[None]:
        consumer = nsq.Consumer("soak", "channel", nsqd=self.link.address, threads=2, **_OPTIONS)
        with consumer.add_handler(self._handle):
            assert consumer.wait_until_connected(20)
            self._thread.start()
            try:
                yield
                self.ended.set()
                self._thread.join(30)
                assert not self._thread.is_alive()
                # Numbers are taken in order, and each is insisted on.
                eventually(lambda: self.confirmed - self._all_below, lambda left: left == 0, within=60)
            finally:
                self.ended.set()
                self._thread.join(30)

    def _handle(self, message: nsq.Message) -> None:
        number = int(message.body)
        with self._lock:
            if number < self._all_below or number in self._ahead:
                self.repeated += 1
                return
            self.handled += 1
            self._ahead.add(number)
            while self._all_below in self._ahead:
                self._ahead.remove(self._all_below)
                self._all_below += 1

    def _publish(self) -> None:
        with nsq.Producer(self.link.address, retry_uncertain=True, **_OPTIONS) as producer:
            number, began = 0, time.monotonic()
            while not self.ended.wait(max(0.0, began + number / _RATE - time.monotonic())):
                batch = [b"%d" % each for each in range(number, number + 10)]
                while not self._published(producer, batch):
                    pass
                number += len(batch)
                self.confirmed = number

    def _published(self, producer: nsq.Producer, batch: list[bytes]) -> bool:
        try:
            producer.multi_publish("soak", batch)
        except nsq.NsqError:
            return False
        return True


@pytest.mark.chaos
@pytest.mark.skipif(not os.environ.get("SOAK"), reason="SOAK=seconds asks for it")
@pytest.mark.timeout(int(os.environ.get("SOAK") or 0) + 300)
def test_memory_descriptors_and_threads_do_not_grow(nsqd_factory: Factory[Nsqd], tell: Tell) -> None:
    seconds = int(os.environ["SOAK"])
    nsqd = nsqd_factory(process=True, msg_timeout=5.0, log_level="warn")
    chance, samples = random.Random(os.environ.get("NSQ_CHAOS_SEED", "soak")), Samples()
    with Network() as network:
        link = network.link(nsqd.tcp_address)
        load = Load(link)
        with load.running():
            cuts, next_cut = 0, 5.0
            for second in range(seconds):
                time.sleep(1)
                if second >= next_cut:
                    chance.choice([link.cut, link.reset, link.half_open])()
                    cuts, next_cut = cuts + 1, second + chance.uniform(2, 10)
                if second % 10 == 0:
                    gc.collect()
                samples.take(load.handled)
                if second % 300 == 299:
                    tell(f"{(second + 1) // 60} minutes: {samples.last}")
    tell(f"{seconds} s, {cuts} cuts, {load.confirmed} messages, {load.repeated} of them twice")
    settled = samples.settled()
    assert flat(settled.memory, 5), settled.memory
    assert flat(settled.threads, 1.5), settled.threads
    assert flat(settled.descriptors, 2), settled.descriptors
