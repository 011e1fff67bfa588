from __future__ import annotations

from typing import Any

import pytest

from nsq.errors import ConfigError, NsqError
from nsq.spark.receiver.crew import CrewStatus
from nsq.spark.source.admission import Amount
from nsq.spark.source.feed import State
from nsq.spark.source.receivers import NoReceivers, OwnReceivers


class FakeCrew:
    def __init__(self) -> None:
        self.fault: NsqError | None = None
        self.said = CrewStatus()
        self.news = False
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def status(self) -> CrewStatus:
        return self.said

    def wait(self, seconds: float) -> bool:
        self.calls.append(("wait", seconds))
        return self.news

    def roll(self, patience: float) -> bool:
        self.calls.append(("roll", patience))
        return True

    def stop(self) -> bool:
        self.calls.append("stop")
        return True


@pytest.fixture
def crew() -> FakeCrew:
    return FakeCrew()


def own(crew: FakeCrew, naps: list[float] | None = None, count: int = 2) -> OwnReceivers:
    return OwnReceivers(crew, count, [].append if naps is None else naps.append)  # type: ignore[arg-type]


def test_the_state_is_that_of_the_crew(crew: FakeCrew) -> None:
    crew.said = CrewStatus(
        alive=2,
        connections=1,
        received=9,
        sealed=3,
        open_rows=5,
        open_bytes=50,
        paused=("the log is full", "no disk"),
    )
    assert own(crew).state() == State(True, True, 9, Amount(5, 50), 3, "the log is full; no disk")


def test_what_was_received_can_be_told_in_spite_of_a_fault(crew: FakeCrew) -> None:
    crew.said, crew.fault = CrewStatus(received=9), ConfigError("nsqd refuses")
    assert own(crew).received() == 9
    assert NoReceivers().received() == 0


def test_it_is_ready_when_all_are(crew: FakeCrew) -> None:
    crew.said = CrewStatus(alive=1)
    assert not own(crew).state().ready
    assert not own(crew).state().connected


def test_what_makes_waiting_futile_is_raised(crew: FakeCrew) -> None:
    crew.fault = ConfigError("nsqd refuses: E_UNAUTHORIZED")
    with pytest.raises(ConfigError, match="E_UNAUTHORIZED"):
        own(crew).state()


def test_old_news_wakes_nobody(crew: FakeCrew) -> None:
    naps: list[float] = []
    receivers = own(crew, naps)
    receivers.wait(0.4)
    assert naps == []
    crew.news = True
    receivers.wait(0.4)
    receivers.wait(0.01)
    assert naps == [0.05, 0.01]


def test_the_rest_is_handed_on(crew: FakeCrew) -> None:
    receivers = own(crew)
    receivers.start()
    receivers.roll(3.0)
    receivers.stop()
    assert crew.calls == ["start", ("roll", 3.0), "stop"]


def test_without_receivers_time_passes() -> None:
    naps: list[float] = []
    nobody = NoReceivers(naps.append)
    nobody.start()
    nobody.wait(0.5)
    nobody.roll(1.0)
    nobody.stop()
    assert naps == [0.5]
    assert nobody.state() == State()
