"""A killed nsqd without --durable loses only messages in memory, in flight or deferred.

NSQ_CHAOS_SEED=7 NSQ_CHAOS_KILLS=100 make chaos ARGS='-k default_nsqd'
"""

from __future__ import annotations

import random
from collections import Counter

from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import Factory
from nsq.wire import commands
from tests.chaos.telling import Tell, short_and_long
from tests.integration.clients import channel_stats, consumer, finish_all, publish, subscribe
from tests.integration.judged import only_ours
from tests.integration.patience import eventually

pytestmark = only_ours("Go's hands messages from topic to channel in the background")

MEMORY = 20


class Life:
    """The messages that one life of an nsqd got and finished, and those that a kill may lose."""

    def __init__(self, nsqd: Nsqd) -> None:
        self.nsqd = nsqd
        self.waiting: Counter[bytes] = Counter()
        self.finished: Counter[bytes] = Counter()
        self.deferred = 0

    def publish(self, bodies: list[bytes]) -> None:
        publish(self.nsqd, "t", bodies)
        self.waiting.update(bodies)

    def defer(self, body: bytes) -> None:
        with V2Client(self.nsqd.tcp_address) as client:
            client.send(commands.dpub("t", 3_600_000, body))
            client.expect_ok()
        self.waiting[body] += 1
        self.deferred += 1

    def consume(self, client: V2Client, count: int) -> None:
        for _ in range(count):
            message = client.expect_message()
            finish_all(client, [message])
            self.finished[message.body] += 1

    def kill(self) -> tuple[int, int]:
        """Returns how many the next life must have, and how many may be lost."""
        seen = channel_stats(self.nsqd, "t")
        self.nsqd.kill()
        in_memory = seen["depth"] - seen["backend_depth"]
        assert in_memory <= MEMORY
        return seen["backend_depth"], in_memory + seen["in_flight_count"] + self.deferred


def waiting_or_in_flight(nsqd: Nsqd) -> int:
    seen = channel_stats(nsqd, "t")
    return int(seen["depth"] + seen["in_flight_count"])


def drain(nsqd: Nsqd) -> list[bytes]:
    """Consume and finish all messages."""
    with consumer(nsqd, "t", rdy=100) as client:
        found = []
        for _ in range(waiting_or_in_flight(nsqd)):
            message = client.expect_message()
            finish_all(client, [message])
            found.append(message.body)
        client.expect_silence(0.02)
        client.send(b"CLS\n")
        client.expect(0, b"CLOSE_WAIT")
    return found


@short_and_long(3, 40)
def test_kills_lose_only_messages_in_memory(
    nsqd_factory: Factory[Nsqd], seed: str, kills: int, tell: Tell
) -> None:
    nsqd = nsqd_factory(
        process=True, mem_queue_size=MEMORY, max_bytes_per_file=2_000, sync_timeout=0.05, sync_every=50
    )
    chance, number, lost, repeated = random.Random(seed), 0, 0, 0
    with consumer(nsqd, "t", rdy=0):
        pass
    drained: Counter[bytes] = Counter()
    for _ in range(kills):
        life = Life(nsqd)
        with V2Client(nsqd.tcp_address) as client:
            subscribe(client, "t", rdy=chance.randint(1, 9))
            for _ in range(chance.randint(1, 8)):
                bodies = [b"%07d" % each for each in range(number, number + chance.randint(1, 40))]
                number += len(bodies)
                life.publish(bodies)
                if chance.random() < 0.3:
                    life.defer(b"%07d" % number)
                    number += 1
                life.consume(client, chance.randint(0, len(bodies)))
            settled = life.waiting.total() - life.finished.total() - life.deferred
            eventually(lambda: waiting_or_in_flight(nsqd), lambda count: count == settled)  # noqa: B023
            kept, may_be_lost = life.kill()
        nsqd.start()
        found = Counter(drain(nsqd))
        # A disk that is slow may not have been told yet what the life before has finished at its end.
        assert not found - life.waiting - drained, "invented, or given twice"
        unfinished = life.waiting - life.finished
        missing = unfinished - found
        assert missing.total() <= may_be_lost, f"seed {seed}"
        assert (found & unfinished).total() >= kept, f"seed {seed}"
        lost += missing.total()
        repeated += (found - unfinished).total()
        drained = found
    tell(f"seed {seed}: {kills} kills, {number} messages, {lost} lost, {repeated} finished ones repeated")
