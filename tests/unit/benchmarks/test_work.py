from __future__ import annotations

import pytest

from benchmarks.peers.work import LEAD_IN, WARM_UP, Counter, Delays, due_times


def test_a_counter_is_done_at_the_last_message_behind_the_warm_up() -> None:
    done: list[int] = []
    seen = 0
    counter = Counter(5, lambda: done.append(seen), clock=lambda: seen / 10)
    for seen in range(1, WARM_UP + 8):  # noqa: B007 - read by the callback
        counter.tick()

    assert done == [WARM_UP + 5]
    assert counter.rate == pytest.approx(10)


def test_delays_are_read_from_bodies_of_the_size_asked_for() -> None:
    done: list[bool] = []
    first = [0.0] * LEAD_IN
    times = iter([*first, 1.0, 2.0, 3.0, *first, 3.5, 4.5, 5.5])
    delays = Delays(3, 200, lambda: done.append(True), clock=lambda: next(times))
    bodies = [delays.stamp() for _ in range(LEAD_IN + 3)]
    for body in bodies:
        assert not done
        delays.note(body)

    assert {len(body) for body in bodies} == {200}
    assert done == [True]
    assert list(delays.numbers()) == pytest.approx([2500, 2500])


def test_messages_are_due_at_a_steady_pace() -> None:
    due = list(due_times(3, 100))
    assert due[:3] == pytest.approx([0.0, 0.01, 0.02])
    assert len(due) == LEAD_IN + 3
