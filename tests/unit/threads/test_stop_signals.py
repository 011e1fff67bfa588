from __future__ import annotations

import pytest

from nsq.threads.stop_signals import StopSignals


@pytest.mark.parametrize(
    ("times", "repeats"),
    [
        ([5.0], [False]),
        ([5.0, 5.0, 5.9], [False, True, True]),
        ([5.0, 5.9, 6.0], [False, True, False]),  # counted from the first, however many come
    ],
)
def test_signals_within_a_second_of_the_first_repeat_it(times: list[float], repeats: list[bool]) -> None:
    signals = StopSignals()
    assert [signals.repeats(now) for now in times] == repeats
