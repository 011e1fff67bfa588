"""Receivers divide the nsqds, and start again when their share changes or their log ends."""

from __future__ import annotations

import pytest

from nsq.errors import ConfigError, NsqError
from nsq.spark import lookups
from nsq.spark.receiver import standing
from nsq.spark.receiver.protocol import Stopped
from nsq.spark.receiver.standing import Share, ShareWatch, own_options, stand
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.status import Status
from nsq.spark.wal.store import open_wal
from tests.integration.patience import eventually

NSQDS = [f"h{number}:4150" for number in range(7)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_nsqd_has_one_receiver(count: int) -> None:
    shares = [Share(index, count).nsqds(reversed(NSQDS)) for index in range(count)]
    assert sorted(address for share in shares for address in share) == NSQDS
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_no_receiver_is_idle_when_there_are_fewer_nsqds() -> None:
    assert [Share(index, 5).nsqds(["b:1", "a:1"]) for index in range(5)] == [
        ("a:1",), ("b:1",), ("a:1",), ("b:1",), ("a:1",),
    ]  # fmt: skip
    assert Share(0, 5).nsqds([]) == ()


def test_a_share_is_spelt_as_people_count() -> None:
    assert Share.of("3/40") == Share(2, 40)
    assert str(Share.of("3/40")) == "3/40"
    for wrong in ("0/4", "5/4", "x", "1", "1/", "-1/2"):
        with pytest.raises(ConfigError, match="want 3/40"):
            Share.of(wrong)


def options(**given: str) -> SourceOptions:
    return SourceOptions.of({"topic": "t", "channel": "c", "wal": "/nowhere", **given})


def test_a_share_asks_nsqlookupd_once_and_connects_to_its_own_nsqds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [lookups.Place(address, "x") for address in NSQDS]
    errors: list[NsqError] = []
    monkeypatch.setattr(lookups, "places", lambda *_: (found, errors))
    given = options(lookupd="l:4161")
    assert own_options(given, Share()) is given
    own = own_options(given, Share(1, 3))
    assert (own.nsqd, own.lookupd) == (("h1:4150", "h4:4150"), ())
    found, errors = [], [NsqError("no answer")]
    assert own_options(given, Share(1, 3), ("old:4150",)).nsqd == ("old:4150",)
    errors = []
    with pytest.raises(NsqError, match="no nsqd has t yet"):
        own_options(given, Share(1, 3))


@pytest.mark.parametrize("answered", [(), ("h0:4150", "h1:4150", "h3:4150")])
def test_no_nsqd_loses_its_receiver_while_an_nsqlookupd_is_away(
    answered: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [lookups.Place(address, "x") for address in answered]
    monkeypatch.setattr(lookups, "places", lambda *_: (found, [NsqError("no answer")]))
    before = [Share(index, 2).nsqds(NSQDS) for index in range(2)]
    now = [own_options(options(lookupd="l:4161"), Share(index, 2), before[index]).nsqd for index in range(2)]
    assert sorted({address for share in now for address in share}) == NSQDS


def test_a_share_changes_only_if_two_looks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [["a:1", "b:1"], ["a:1"], ["b:1"], ["b:1"], ["b:1"]]
    monkeypatch.setattr(standing, "LOOK_EVERY", 0.001)

    def places(*_: object) -> tuple[list[lookups.Place], list[NsqError]]:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [lookups.Place(address, "x") for address in found], []

    monkeypatch.setattr(lookups, "places", places)
    watch = ShareWatch(options(lookupd="l:4161"), Share(0, 2), ("a:1",))
    eventually(lambda: watch.changed, bool, 60.0)
    watch.stop()
    assert answers == [["b:1"]]


class FakeReceiving:
    """Breaks, fails and ends as its class says."""

    made: list[FakeReceiving]
    script: list[str]

    def __init__(self, *_: object, **__: object) -> None:
        self.act = self.script.pop(0)
        self.made.append(self)
        if self.act == "fail":
            raise NsqError("the log is away")

    def start(self) -> None: ...

    def status(self) -> Status:
        return Status(received=10)

    def refusal(self) -> str:
        return "E_UNAUTHORIZED" if self.act == "refused" else ""

    @property
    def broken(self) -> str:
        return "fenced" if self.act == "break" else ""

    def stop(self, timeout: float) -> Stopped:
        return Stopped(1, 0)


@pytest.fixture
def receiving(monkeypatch: pytest.MonkeyPatch) -> type[FakeReceiving]:
    FakeReceiving.made, FakeReceiving.script = [], []
    monkeypatch.setattr(standing, "Receiving", FakeReceiving)
    return FakeReceiving


def test_a_receiver_starts_again_after_its_log_broke_or_failed(
    receiving: type[FakeReceiving], tmp_path: object
) -> None:
    given = options(wal=f"{tmp_path}/wal", nsqd="a:1")
    receiving.script = ["break", "fail", "well"]
    seen: list[Status] = []
    waits: list[float] = []

    def ended(seconds: float) -> bool:
        waits.append(seconds)
        return len(receiving.made) == 3

    done = stand(given, ended=ended, report=seen.append, patient=True)
    assert len(receiving.made) == 3
    assert done.sealed == 2
    assert seen[-1].received == 20  # of the two that received
    assert any("the log is away" in status.error for status in seen)
    assert open_wal(given.wal).identity() is not None


def test_settings_that_nsqd_refuses_end_it(receiving: type[FakeReceiving], tmp_path: object) -> None:
    receiving.script = ["refused"]
    with pytest.raises(ConfigError, match="nsqd refuses: E_UNAUTHORIZED"):
        stand(options(wal=f"{tmp_path}/wal", nsqd="a:1"), ended=lambda _: False, report=lambda _: None)
