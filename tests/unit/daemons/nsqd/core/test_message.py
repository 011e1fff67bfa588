from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nsq.daemons.nsqd.core.message import Message, MessageIds

TICK = 1 << 20


def test_an_id_is_time_node_and_sequence() -> None:
    ids = MessageIds(0x3FF, lambda: 5 * TICK + 7)
    assert ids.take(2) == [b"%016x" % (5 << 22 | 0x3FF << 12), b"%016x" % (5 << 22 | 0x3FF << 12 | 1)]


def test_a_burst_borrows_from_the_ticks_to_come() -> None:
    now = [5 * TICK]
    ids = MessageIds(1, lambda: now[0])
    burst = ids.take(3 * 4096)
    now[0] = 6 * TICK
    burst += ids.take(10)
    assert len(burst) == 3 * 4096 + 10
    assert all(first < second for first, second in pairwise(burst))
    assert int(burst[4096], 16) >> 22 == 6


@given(
    st.lists(st.tuples(st.integers(0, 2**61), st.integers(1, 9000)), min_size=2, max_size=8),
    st.integers(0, 1023),
)
def test_ids_ascend_whatever_the_clock_does(takes: list[tuple[int, int]], node: int) -> None:
    clock = iter([time for time, _ in takes])
    source = MessageIds(node, lambda: next(clock))
    ids = []
    for _, count in takes:
        taken = source.take(count)
        assert len(taken) == count
        ids += taken
    assert all(first < second for first, second in pairwise(ids))
    assert all(len(each) == 16 and int(each, 16) >> 12 & 1023 == node for each in ids)


def test_nodes_of_one_moment_do_not_collide() -> None:
    both = [set(MessageIds(node, lambda: 9 * TICK).take(4096)) for node in (1, 2)]
    assert not both[0] & both[1]


def test_a_copy_shares_the_body_and_not_the_history() -> None:
    message = Message(b"i" * 16, b"body", 5, due=9.0)
    message.attempts = 1
    copy = message.copy()
    assert (copy.id, copy.timestamp, copy.due, copy.attempts) == (message.id, 5, 9.0, 0)
    assert copy.body is message.body
