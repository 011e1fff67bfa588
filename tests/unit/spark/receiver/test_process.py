"""Events on their way to an owner who does not read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from nsq.spark.receiver import protocol
from nsq.spark.receiver.process import Outlet
from nsq.spark.receiver.protocol import Lines, Rolled


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(writer)


def test_what_a_full_pipe_does_not_take_waits_and_arrives_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outlet, lines, found = Outlet(writer), Lines(), list[object]()
    count = 0
    while outlet.descriptor < 0:
        count += 1
        outlet.say(Rolled(count))
    for _ in range(100):
        count += 1
        outlet.say(Rolled(count))
    assert outlet.descriptor == writer
    while len(found) < count:
        found += map(protocol.event, lines.feed(os.read(reader, 1 << 16)))
        outlet.flush()
    os.close(reader)
    assert found == [Rolled(number + 1) for number in range(count)]
    assert outlet.descriptor == -1


def test_an_owner_that_is_gone_is_noticed(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        Outlet(writer).say(Rolled(1))
