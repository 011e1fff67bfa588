"""Children of a publishing program are killed at random while it forks: the others are not affected."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import Factory
from nsq.wire import commands
from tests.chaos import records
from tests.chaos.telling import Tell, short_and_long
from tests.fakes.programs import run_python
from tests.integration.clients import channel_stats, finish_all

TOPIC, CHANNEL = "orders", "channel"
CHILDREN = 8


def storm(nsqd: Nsqd, directory: Path, seed: str, kills: int) -> dict[str, object]:
    plan = {
        "nsqd": [nsqd.tcp_address],
        "topic": TOPIC,
        "directory": str(directory),
        "seed": seed,
        "kills": kills,
        "children": CHILDREN,
    }
    # From 3.12 on Python warns of any fork in a program with threads, which is what this is about.
    quiet = ("-W", "ignore::DeprecationWarning")
    done = run_python(*quiet, "-m", "tests.chaos.prefork", json.dumps(plan), timeout=200 + kills)
    assert (done.returncode, done.stderr) == (0, "")
    report: dict[str, object] = json.loads(done.stdout)
    return report


def stored(nsqd: Nsqd) -> Counter[int]:
    """All messages of the channel, by number."""
    bodies: Counter[int] = Counter()
    with V2Client(nsqd.tcp_address) as client:
        client.send(commands.sub(TOPIC, CHANNEL))
        client.expect_ok()
        expected = channel_stats(nsqd, TOPIC, CHANNEL)["depth"]
        client.send(commands.rdy(2000))
        while sum(bodies.values()) < expected:
            found = client.frame(60)
            if found.type == 2:
                bodies[int(found.message.body)] += 1
                finish_all(client, [found.message])
    return bodies


@short_and_long(10, 200, "1 2")
def test_a_storm_of_forks_harms_neither_parent_nor_siblings(
    nsqd_factory: Factory[Nsqd], tmp_path: Path, seed: str, kills: int, tell: Tell
) -> None:
    nsqd = nsqd_factory(process=True, mem_queue_size=10_000_000, msg_timeout=60.0, log_level="warn")
    assert nsqd.post(f"/topic/create?topic={TOPIC}").status == 200
    assert nsqd.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}").status == 200
    report = storm(nsqd, tmp_path, seed, kills)
    assert report["faults"] == []
    assert report["statuses"] == [0] * CHILDREN
    confirmed = {
        record.message for path in tmp_path.glob("worker-*.records") for record in records.read(path)
    }
    found = stored(nsqd)
    tell(f"seed {seed}: {kills} children killed, {len(confirmed)} messages confirmed")
    assert confirmed - set(found) == set()
    # Nobody published anything a second time, so nothing is there twice.
    assert [number for number, times in found.items() if times > 1] == []
    # Of a killed child at most its last publish, of up to two messages, had no answer yet.
    assert len(set(found) - confirmed) <= 2 * kills
