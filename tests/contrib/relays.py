"""Relays of an outbox that are killed while two programs write: nothing is lost, each key keeps its order.

The publishing order counts, so that a file stands for nsqd. It has a line for each message, its key and its
number.
"""

from __future__ import annotations

import random
import subprocess
from collections import defaultdict
from collections.abc import Callable

from tests.integration.consuming import until

Start = Callable[..., "subprocess.Popen[bytes]"]
COUNT, KILLS = 300, 3
#: Messages that a relay of these tests publishes at a time.
BATCH = 7


def expect_nothing_lost(
    start_writer: Start,
    start_relay: Start,
    lines: Callable[[], list[str]],
    is_empty: Callable[[], bool],
    said: Callable[[], str],
) -> None:
    """Run writers, which get a number and how much to write, and relays; ``lines`` are those of the file."""
    chance = random.Random(1)
    writers = [start_writer(str(number), str(COUNT)) for number in range(2)]
    relays = [start_relay() for _ in range(3)]
    try:
        for _ in range(KILLS):
            enough = len(lines()) + 20
            until(
                "more are published",
                lambda enough=enough: (
                    len(lines()) > enough or all(each.poll() is not None for each in writers)
                ),
            )
            victim = relays.pop(chance.randrange(3))
            victim.kill()
            victim.wait()
            relays.append(start_relay())
        for each in writers:
            assert each.wait(200) == 0, said()
        until("the outbox is empty", is_empty)
        for each in relays:
            each.terminate()
            assert each.wait(60) == 0, said()
    finally:
        for each in (*relays, *writers):
            each.kill()
            each.wait()
    found = lines()
    first: dict[str, list[int]] = defaultdict(list)
    for line in dict.fromkeys(found):
        key, _, number = line.partition(" ")
        first[key].append(int(number))
    # Every committed number once, in order.
    wrong = {key: numbers for key, numbers in first.items() if numbers != list(range(1, len(numbers) + 1))}
    assert wrong == {}
    assert sum(map(len, first.values())) > 2 * COUNT * 0.8
    # A kill repeats at most the batch under way.
    assert len(found) - len(set(found)) <= KILLS * BATCH
    assert "Traceback" not in said()
