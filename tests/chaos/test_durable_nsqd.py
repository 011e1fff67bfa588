"""A killed nsqd with --durable has everything that it has confirmed.

make chaos ARGS='-k durable'            # tells what happened
NSQ_CHAOS_SEED=7 NSQ_CHAOS_KILLS=100 make chaos ARGS='-k durable'
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import Factory
from nsq.wire import commands
from tests.chaos.crowd import CHANNELS, TOPICS, Administrator, Consumer, Ledger, Producer, Worker, drain
from tests.chaos.telling import Tell, short_and_long
from tests.integration import go_reader
from tests.integration.judged import only_ours
from tests.integration.patience import eventually

pytestmark = only_ours("durability")


def run(nsqd: Nsqd, data: Path, seed: str, kills: int, tell: Tell) -> Ledger:
    chance, ledger = random.Random(seed), Ledger()
    for topic in TOPICS:
        for channel in CHANNELS:
            with V2Client(nsqd.tcp_address) as client:
                client.send(commands.sub(topic, channel))
                client.expect_ok()
    workers: list[Worker] = [Producer(nsqd, ledger, f"producer-{number}", seed) for number in range(3)]
    workers += [
        Consumer(nsqd, ledger, (topic, channel), number, seed)
        for topic in TOPICS
        for channel in CHANNELS
        for number in range(2 if topic == "orders" else 1)
    ]
    administrator = Administrator(nsqd, ledger, seed)
    workers.append(administrator)
    try:
        for done in range(kills):
            time.sleep(chance.uniform(0.05, 0.6))
            # A busy machine may have published little by then.
            eventually(lambda: ledger.messages > 30 * (done + 1))  # noqa: B023
            nsqd.terminate() if chance.random() < 0.15 else nsqd.kill()
            nsqd.start()
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join()
    for topic in TOPICS:
        for channel in CHANNELS:
            drain(nsqd, ledger, (topic, channel))
    nsqd.stop(keep_data=True)
    left = {
        f"{topic}:{channel}": go_reader.bodies(data, f"{topic}:{channel}")
        for topic in TOPICS
        for channel in CHANNELS
    }
    tell(
        f"seed {seed}: {kills} kills, {ledger.messages} messages, {len(ledger.losses)} lost, "
        f"{ledger.duplicates} duplicates in {sum(ledger.deliveries.values())} deliveries, "
        f"{administrator.actions} changes of topics and channels"
    )
    assert ledger.faults == []
    assert ledger.losses[:5] == [], f"{len(ledger.losses)} confirmed messages are lost; seed {seed}"
    assert left == {name: [] for name in left}, "finished messages were left after a clean stop"
    return ledger


def start(nsqd_factory: Factory[Nsqd], data: Path) -> Nsqd:
    return nsqd_factory(
        process=True,
        durable=True,
        mem_queue_size=20,
        max_bytes_per_file=20_000,
        sync_timeout=0.1,
        log_level="warning",
        data_path=str(data),
    )


@short_and_long(4, 40)
def test_nothing_confirmed_is_lost_in_kills(
    nsqd_factory: Factory[Nsqd], tmp_path: Path, seed: str, kills: int, tell: Tell
) -> None:
    ledger = run(start(nsqd_factory, tmp_path), tmp_path, seed, kills, tell)
    assert ledger.messages > 30 * kills
