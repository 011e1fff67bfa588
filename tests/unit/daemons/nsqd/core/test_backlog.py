from __future__ import annotations

from nsq.daemons.nsqd.core.backlog import EphemeralBacklog, MemoryBacklog
from nsq.daemons.nsqd.core.message import Message


def messages(*bodies: bytes) -> list[Message]:
    return [Message(b"%016x" % number, body, 0) for number, body in enumerate(bodies)]


def taken(backlog: MemoryBacklog, limit: int) -> list[bytes]:
    return [message.body for message in backlog.take(limit)]


def test_first_in_first_out() -> None:
    backlog = MemoryBacklog()
    backlog.put(messages(b"a", b"b"))
    backlog.put(iter(messages(b"c")))
    assert (len(backlog), backlog.backend_depth) == (3, 0)
    assert taken(backlog, 2) == [b"a", b"b"]
    assert taken(backlog, 0) == []
    assert taken(backlog, 5) == [b"c"]
    assert taken(backlog, 5) == []


def test_clear() -> None:
    backlog = MemoryBacklog()
    backlog.put(messages(b"a"))
    backlog.clear()
    assert len(backlog) == 0


def test_an_ephemeral_one_drops_what_exceeds_its_limit() -> None:
    backlog = EphemeralBacklog(2)
    backlog.put(messages(b"a", b"b", b"c"))
    backlog.put(messages(b"d"))
    assert taken(backlog, 1) == [b"a"]
    backlog.put(messages(b"e", b"f"))
    assert taken(backlog, 9) == [b"b", b"e"]


def test_an_ephemeral_one_without_memory_drops_everything() -> None:
    backlog = EphemeralBacklog(0)
    backlog.put(messages(b"a"))
    assert len(backlog) == 0
