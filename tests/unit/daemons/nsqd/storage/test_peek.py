"""A look at what waits: in the order of delivery, bounded, and without a trace."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from nsq.daemons.nsqd.core.backlog import MemoryBacklog, Waiting
from nsq.daemons.nsqd.core.broker import Broker
from tests.fakes.clock import FakeClock
from tests.unit.daemons.nsqd.core.consumer import Consumer
from tests.unit.daemons.nsqd.storage.backlogs import Durable, Spilling, bodies, message, messages

Any = MemoryBacklog | Spilling | Durable
PLENTY = 10_000


Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Backlogs that leave no file open."""
    made: list[Any] = []

    def new(kind: str, **options: int) -> Any:
        kinds = {"spilling": Spilling, "durable": Durable}
        made.append(kinds[kind](tmp_path, **options) if kind in kinds else MemoryBacklog())
        return made[-1]

    yield new
    for backlog in made:
        backlog.delete()


KINDS = pytest.mark.parametrize("kind", ["memory", "spilling", "durable"])


def look(backlog: Any, n: int = 100, max_bytes: int = PLENTY) -> list[Waiting]:
    return asyncio.run(backlog.peek(n, max_bytes))


def shown(found: Iterable[Waiting]) -> list[bytes]:
    return [each.body for each in found]


@KINDS
@pytest.mark.parametrize("taken", range(9))
def test_a_peek_shows_the_messages_that_are_taken_next(make: Make, kind: str, taken: int) -> None:
    backlog = make(kind)
    for batch in (b"1", b"2"), (b"3", b"4", b"5"), (b"6", b"7", b"8"):
        backlog.put(messages(*batch))
    held = backlog.take(taken)
    backlog.put_back(held[:1])
    backlog.finished(held[1:2])
    before = len(backlog), backlog.backend_depth
    found = [look(backlog, n) for n in (0, 1, 3, 100)]
    assert (len(backlog), backlog.backend_depth) == before
    expected = backlog.take(100)
    assert [shown(each) for each in found] == [bodies(expected)[:n] for n in (0, 1, 3, 100)]
    assert [each.id for each in found[-1]] == [each.id for each in expected]
    assert [each.attempts for each in found[-1]] == [each.attempts for each in expected]


@KINDS
def test_a_peek_shows_attempts_and_timestamps(make: Make, kind: str) -> None:
    backlog = make(kind)
    each = message(b"tried")
    each.attempts, each.timestamp = 3, 12345
    backlog.put([each])
    (found,) = look(backlog)
    assert found == Waiting(each.id, 12345, 3, 5, b"tried")


@KINDS
@pytest.mark.parametrize("max_bytes", [0, 1, 3, 4, 7, 11, 100])
def test_a_peek_returns_no_more_bytes_than_asked_for(make: Make, kind: str, max_bytes: int) -> None:
    backlog = make(kind)
    whole = [b"aaa", b"bbbb", b"cccc", b"dd", b"e"]
    for body in whole:
        backlog.put(messages(body))
    found = look(backlog, 100, max_bytes)
    assert [each.size for each in found] == [3, 4, 4, 2, 1]
    assert b"".join(shown(found)) == b"".join(whole)[:max_bytes]
    assert all(body.startswith(each.body) for body, each in zip(whole, found, strict=True))


def test_a_peek_shows_the_readable_part_of_damaged_files(make: Make, tmp_path: Path) -> None:
    backlog = make("spilling", limit=0)
    for number in range(12):
        backlog.put(messages(b"%d" % number))  # four to a file
    first, second, _ = sorted(tmp_path.glob("*.0*.dat"))
    content = bytearray(first.read_bytes())
    content[31] = 0x7F  # the size of its second record
    first.write_bytes(content)
    second.unlink()
    assert shown(look(backlog)) == [b"0", b"8", b"9", b"10", b"11"]


def test_a_peek_skips_messages_in_flight(make: Make) -> None:
    backlog = make("durable", limit=1)
    backlog.put(messages(b"1"))
    backlog.put(messages(b"2"))
    assert bodies(backlog.take(1)) == [b"1"]
    backlog.put(messages(b"3"))
    assert shown(look(backlog)) == [b"2", b"3"]


class TestTheCore:
    def test_a_peek_into_a_channel_shows_only_waiting_messages(self) -> None:
        clock = FakeClock()
        broker = Broker(clock)
        consumer = Consumer(rdy=1)
        channel = broker.subscribe("t", "c", consumer.subscriber)
        broker.publish("t", [b"held", b"1", b"2"])
        broker.publish_deferred("t", [(60.0, b"later")])
        clock.run_due()
        counts = copy.copy(vars(channel))
        assert shown(asyncio.run(channel.peek(10, PLENTY))) == [b"1", b"2"]
        assert vars(channel) == counts
        assert consumer.bodies == [b"held"]

    def test_a_peek_into_a_topic_shows_the_messages_that_wait_for_a_channel(self) -> None:
        broker = Broker(FakeClock())
        broker.publish("t", [b"1", b"2", b"3"])
        topic = broker.topics["t"]
        assert shown(asyncio.run(topic.peek(2, PLENTY))) == [b"1", b"2"]
        topic.channel("c")
        assert asyncio.run(topic.peek(2, PLENTY)) == []
