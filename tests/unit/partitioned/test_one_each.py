"""RDY where nsqd delivers in order: one message for each connection."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nsq.consumer.rdy import Outcome
from nsq.partitioned.ordered import OneEach
from tests.unit.consumer.test_rdy import TURN, World


@pytest.mark.parametrize("max_in_flight", [1, 2, 100])
def test_every_connection_has_one_whatever_max_in_flight_is(max_in_flight: int) -> None:
    world = World(max_in_flight, kind=OneEach).connect("a", "b", "c")
    assert world.rdy == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    "happen",
    [
        lambda world: world.tick(10 * TURN),
        lambda world: world.answer("a", Outcome.FAILURE, count=0),
        lambda world: world.windows.handled_late(world.now, 60.0, 1) or world.decide(),
        lambda world: world.receive("a", 2),
    ],
    ids=["time passes", "a handler fails", "handlers are slow", "a message is repeated"],
)
def test_no_event_stops_a_connection(happen: Callable[[World], object]) -> None:
    world = World(10, kind=OneEach).connect("a", "b")
    world.orders = []
    happen(world)
    world.decide()
    assert (world.rdy, world.orders, world.backoff.level) == ({"a": 1, "b": 1}, [], 0)


def test_a_pause_stops_all_and_a_closing_connection_gets_none() -> None:
    world = World(10, kind=OneEach).connect("a", "b")
    world.pause(True)
    assert world.rdy == {"a": 0, "b": 0}
    world.pause(False)
    assert world.rdy == {"a": 1, "b": 1}
    assert "order" in world.windows.reason("a")
    world.close("a")
    world.tick(TURN)
    assert world.rdy == {"a": 0, "b": 1}
