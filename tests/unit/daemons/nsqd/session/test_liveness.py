from __future__ import annotations

from nsq.daemons.nsqd.session.negotiation import Liveness
from tests.fakes.clock import FakeClock


class Watch:
    def __init__(self) -> None:
        self.clock = FakeClock(now=0.0)
        self.beats: list[float] = []
        self.silences: list[float] = []
        self.liveness = Liveness(
            self.clock,
            beat=lambda: self.beats.append(self.clock.now()),
            silent=lambda: self.silences.append(self.clock.now()),
        )


def test_a_client_that_sends_anything_gets_two_more_intervals() -> None:
    watch = Watch()
    watch.liveness.start(10.0)
    for _ in range(10):
        watch.clock.advance(19.0)
        watch.liveness.heard_at = watch.clock.now()
    assert watch.silences == []
    watch.clock.advance(20.0)
    assert watch.silences == [210.0]
    assert watch.beats == [10.0 * number for number in range(1, 22)]


def test_a_new_interval_replaces_the_old_one() -> None:
    watch = Watch()
    watch.liveness.start(30.0)
    watch.clock.advance(29.0)
    watch.liveness.start(1.0)
    watch.clock.advance(1.5)
    assert watch.beats == [30.0]
    assert watch.silences == []


def test_a_late_beat_does_not_delay_all_that_follow() -> None:
    watch = Watch()
    watch.liveness.start(10.0)
    late = watch.clock._timers[0][2]
    watch.clock._now = 13.0  # the loop was busy
    late.cancel()
    late.action()
    watch.liveness.heard_at = watch.clock.now()
    watch.clock.advance(7.0)
    assert watch.beats == [13.0, 20.0]


def test_an_excused_silence_begins_anew() -> None:
    watch = Watch()
    watch.liveness.start(10.0)
    watch.clock.advance(20.0)
    watch.liveness.restart_silence()
    watch.clock.advance(19.0)
    assert watch.silences == [20.0]
    watch.clock.advance(1.0)
    assert watch.silences == [20.0, 40.0]
    assert watch.beats == [10.0, 20.0, 30.0, 40.0]
