from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nsq.daemons.nsqd.core.backlog import Batch, EphemeralBacklog, MemoryBacklog, Message, MessageIds

TICK = 1 << 20


def test_an_id_is_time_node_and_sequence() -> None:
    ids = MessageIds(0x3FF, lambda: 5 * TICK + 7)
    assert list(ids.take(2)) == [b"%016x" % (5 << 22 | 0x3FF << 12), b"%016x" % (5 << 22 | 0x3FF << 12 | 1)]


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
        assert len(taken) == len(list(taken)) == count
        part = slice(count // 3, -1)
        assert list(taken[part]) == list(taken)[part]
        ids += taken
    assert all(first < second for first, second in pairwise(ids))
    assert all(len(each) == 16 and int(each, 16) >> 12 & 1023 == node for each in ids)


def test_a_copy_shares_the_body_and_not_the_history() -> None:
    message = Message(b"i" * 16, b"body", 5, due=9.0)
    message.attempts = 1
    copy = message.copy()
    assert (copy.id, copy.timestamp, copy.due, copy.attempts) == (message.id, 5, 9.0, 0)
    assert copy.body is message.body


def messages(*bodies: bytes) -> list[Message]:
    return [Message(b"%016x" % number, body, 0) for number, body in enumerate(bodies)]


def taken(backlog: MemoryBacklog, limit: int) -> list[bytes]:
    return [message.body for message in backlog.take(limit)]


def test_a_batch_is_taken_in_parts_and_shared_by_those_that_have_it() -> None:
    batch = Batch([b"%016x" % number for number in range(5)], [b"a", b"b", b"c", b"d", b"e"], 7)
    one, other = MemoryBacklog(), EphemeralBacklog(4)
    for backlog in (one, other):
        backlog.put(batch)
    (first,) = one.take(1)
    first.attempts = 1
    one.put(messages(b"f"))
    one.put_back([first])
    assert [each.body for each in one.in_memory] == [b"b", b"c", b"d", b"e", b"f", b"a"]
    assert (len(one), taken(one, 2), taken(one, 9)) == (6, [b"b", b"c"], [b"d", b"e", b"f", b"a"])
    assert len(one) == 0
    assert [(each.id, each.timestamp, each.attempts) for each in other.take(9)] == [
        (message_id, 7, 0) for message_id in batch.ids[:4]
    ]


def test_an_ephemeral_backlog_drops_messages_beyond_its_limit() -> None:
    backlog = EphemeralBacklog(2)
    backlog.put(messages(b"a", b"b", b"c"))
    backlog.put(messages(b"d"))
    assert taken(backlog, 1) == [b"a"]
    backlog.put(messages(b"e", b"f"))
    assert taken(backlog, 9) == [b"b", b"e"]
