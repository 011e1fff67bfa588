"""Deferred messages live through clean restarts, and with --durable through kills: none is lost or early.

make chaos ARGS='-k deferred'
NSQ_CHAOS_SEED=7 NSQ_CHAOS_KILLS=50 make chaos ARGS='-k deferred'
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import Factory
from nsq.wire import commands
from nsq.wire.frames import FRAME_MESSAGE
from tests.chaos.telling import Tell, short_and_long
from tests.integration import go_reader
from tests.integration.clients import channel_stats, connected, consumer, subscribe
from tests.integration.judged import only_ours

pytestmark = only_ours("due times over a restart")

#: Seconds by which clocks of two lives may differ.
ROUNDING = 0.05
AT_ONCE = 200


class Story:
    """What was deferred until when, and what has come."""

    def __init__(self, nsqd: Nsqd, seed: str) -> None:
        self.nsqd = nsqd
        self.chance = random.Random(seed)
        self.due: dict[bytes, float] = {}
        self.finished: Counter[bytes] = Counter()
        self.requeued: set[bytes] = set()
        self.early: list[tuple[bytes, float]] = []
        self.wrong_attempts: list[tuple[bytes, int]] = []

    def defer(self, count: int, seconds: float) -> None:
        bodies = [b"%d" % number for number in range(len(self.due), len(self.due) + count)]
        with connected(self.nsqd) as client:
            for start in range(0, count, AT_ONCE):
                part = bodies[start : start + AT_ONCE]
                delays = [self.chance.randint(1, round(seconds * 1000)) for _ in part]
                now = time.time()
                self.due.update((body, now + delay / 1000) for body, delay in zip(part, delays, strict=True))
                made = [
                    commands.dpub("t", *each)
                    for each in zip(delays, (b + bytes(100) for b in part), strict=True)
                ]
                client.send(b"".join(made))
                for _ in part:
                    client.expect_ok()

    def consume(self, seconds: float, requeues: float) -> None:
        """Take messages for so long; nsqd has surely handled every answer at the end."""
        end = time.monotonic() + seconds
        with consumer(self.nsqd, "t", rdy=500) as client:
            while time.monotonic() < end:
                self._answer_what_comes(client, requeues)
            client.send(commands.rdy(0))
            self._answer_what_comes(client, 0.0)

    def _answer_what_comes(self, client: V2Client, requeues: float) -> None:
        """Answer the messages that come before nsqd confirms a publish, and wait for another confirmation."""
        for _ in range(2):
            client.send(commands.pub("other", b"x"))
            while (frame := client.frame()).type == FRAME_MESSAGE:
                body = frame.message.body.rstrip(b"\0")
                if time.time() < self.due[body] - ROUNDING:
                    self.early.append((body, self.due[body] - time.time()))
                if body not in self.requeued and self.chance.random() < requeues:
                    self.requeued.add(body)
                    delay = self.chance.randint(1, 5000)
                    self.due[body] = time.time() + delay / 1000
                    client.send(commands.req(frame.message.id, delay))
                    continue
                if frame.message.attempts < 1 + (body in self.requeued):
                    self.wrong_attempts.append((body, frame.message.attempts))
                self.finished[body] += 1
                client.send(commands.fin(frame.message.id))

    @property
    def missing(self) -> list[bytes]:
        return [body for body in self.due if not self.finished[body]]


@pytest.mark.parametrize("kill", [False, True], ids=["restarts", "kills"])
@short_and_long(3, 20, "1")
def test_deferred_messages_live_through_many_lives_of_nsqd(
    nsqd_factory: Factory[Nsqd], tmp_path: Path, seed: str, kills: int, tell: Tell, kill: bool
) -> None:
    count = 2000 if seed == "a few" else 200_000
    options = {"mem_queue_size": 100, "sync_timeout": 0.2, "log_level": "warning", "durable": kill}
    nsqd = nsqd_factory(process=True, data_path=str(tmp_path), **options)
    story = Story(nsqd, seed)
    with V2Client(nsqd.tcp_address) as client:
        subscribe(client, "t", rdy=0)
    began = time.monotonic()
    for life in range(kills):
        story.defer(count // kills, 3.0 * (kills - life))
        story.consume(story.chance.uniform(0.2, 1.5), 0.1)
        if kill:
            nsqd.kill()
            nsqd.start()
        else:
            nsqd.restart()
    deadline = time.monotonic() + 6.0 * kills + 120.0
    while story.missing and time.monotonic() < deadline:
        story.consume(1.0, 0.0)
    repeated = story.finished.total() - len(story.finished)
    tell(
        f"seed {seed}: {kills} {'kills' if kill else 'restarts'}, {len(story.due)} deferred messages, "
        f"{len(story.requeued)} requeued, {len(story.missing)} lost, "
        f"{len(story.early)} early, {repeated} repeated, {time.monotonic() - began:.0f} s"
    )
    assert not story.missing, f"{len(story.missing)} are lost, as {story.missing[:5]}"
    assert not story.early, f"{len(story.early)} are early, as {story.early[:5]}"
    assert not story.wrong_attempts
    assert kill or not repeated
    assert channel_stats(nsqd, "t")["deferred_count"] == 0
    nsqd.stop(keep_data=True)
    assert go_reader.bodies(tmp_path, "t:channel") == []
