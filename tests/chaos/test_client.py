"""No confirmed message stays unhandled, whatever happens to clients, daemons and the network.

make chaos ARGS=tests/chaos/test_client.py                     # these alone
NSQ_CHAOS_SEED=7 make chaos ARGS=tests/chaos/test_client.py    # one seed, or several with spaces between
NSQ_CHAOS_FAULTS=1000 NSQ_CHAOS_MESSAGES=1000000               # of each seed, at least
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from nsq.testing import Nsqd, Nsqlookupd, Schedule
from nsq.testing.plugin import Factory
from tests.chaos import records
from tests.chaos.actors import Actor, Life
from tests.chaos.stage import CHANNEL, TOPIC, Stage
from tests.chaos.telling import Tell
from tests.golden.recordings import others_are_judged
from tests.integration.patience import eventually

#: What a stop may take beyond its timeout: a second to end threads, a dial that cannot be called off, and
#: what busy cores need.
STOP_GRACE = 4.0
SETTLING = 60.0
#: An nsqd looks after its nsqlookupds every 15 s, and takes two looks to notice one that was lost in silence:
#: before that no consumer can find the nsqd there.
FINDING = 120.0


class Progress:
    """The messages that are confirmed and handled so far; ``look`` reads the new records."""

    def __init__(self, actors: Iterable[Actor]) -> None:
        self.confirmed: set[int] = set()
        self.handled: set[int] = set()
        self.heard: dict[tuple[str, int], float] = {}
        """When the last message came to each consumer, by nsqd."""
        self._actors = list(actors)
        self._offsets: Counter[str] = Counter()

    def look(self) -> None:
        for actor in self._actors:
            for life in actor.lives:
                new = list(records.read(life.path, self._offsets[str(life.path)]))
                self._offsets[str(life.path)] += len(new)
                for each in new:
                    if each.kind == records.CONFIRMED:
                        self.confirmed.add(each.message)
                    else:
                        self.handled.add(each.message)
                        self.heard[actor.name, each.nsqd] = each.at

    @property
    def missing(self) -> set[int]:
        return self.confirmed - self.handled


class Play:
    def __init__(self, stage: Stage, tell: Tell) -> None:
        self.stage = stage
        self.tell = tell
        self.progress = Progress(stage.actors)
        self.began = time.monotonic()

    def run(self, faults: int, messages: int, longest: float = 1.5) -> None:
        """Publish and consume at least this many messages; no fault lasts longer than that."""
        stage = self.stage
        stage.wait(1.0)
        for strike in Schedule(stage.seed, kinds=stage.kinds, pause=(0.02, 0.5), seconds=(0.05, longest)):
            if len(stage.struck) >= faults and len(self.progress.confirmed) >= messages:
                break
            if len(stage.struck) >= faults:
                stage.wait(0.5)
                self.progress.look()
            else:
                stage.wait(strike.after)
                stage.strike(strike)
                if len(stage.struck) % 10 == 0:
                    self.progress.look()
                if len(stage.struck) % 50 == 0:
                    self.tell(self._so_far)
        stage.heal()
        self._settle(time.monotonic())

    def _settle(self, healed: float) -> None:
        """Wait until each subscriber gets messages of each nsqd, and all confirmed ones are handled."""
        stage = self.stage
        eventually(lambda: self._unrecovered(healed), lambda pairs: not pairs, within=FINDING)
        for actor in stage.publishers:
            actor.ask_to_stop(60.0)
        for actor in stage.publishers:
            actor.hear()
        self.progress.look()

        self._await_the_last()
        for nsqd in stage.nsqds:
            eventually(partial(_left, nsqd), lambda left: not any(left), within=SETTLING)
        for actor in stage.subscribers:
            actor.ask_to_stop(60.0)
        for actor in stage.actors:
            actor.hear()
        self.progress.look()

    def _unrecovered(self, healed: float) -> list[tuple[str, int]]:
        """Return the subscribers, with the nsqd, that have got nothing since everything was healed."""
        self.progress.look()
        pairs = [(each.name, number) for each in self.stage.subscribers for number in range(2)]
        return [pair for pair in pairs if self.progress.heard.get(pair, 0.0) < healed]

    def _await_the_last(self) -> None:
        """Wait for the missing messages, as long as some arrive within SETTLING seconds."""
        fewest, since = len(self.progress.missing), time.monotonic()
        while self.progress.missing:
            self.stage.wait(0.2)
            self.progress.look()
            if len(self.progress.missing) < fewest:
                fewest, since = len(self.progress.missing), time.monotonic()
            if time.monotonic() - since > SETTLING:
                some = sorted(self.progress.missing)[:5]
                raise AssertionError(
                    f"seed {self.stage.seed}: {fewest} confirmed messages are missing, {some} among them; "
                    f"nothing came for {SETTLING:g} s\n{self.stage.description}"
                )

    def say(self) -> None:
        reports = [life.report for actor in self.stage.actors for life in actor.lives if life.report]
        late = max((report["elapsed"] - report["timeout"] for report in reports), default=0.0)
        errors = sum((Counter(report.get("errors", {})) for report in reports), Counter())
        self.tell(
            f"{self._so_far}, {len(self.progress.missing)} lost\n"
            f"faults: {_listed(Counter(self.stage.struck))}\n"
            f"{len(reports)} stops, the slowest {max(late, 0.0):.2f} s beyond its timeout\n"
            f"publishers' errors: {_listed(errors)}"
        )

    @property
    def _so_far(self) -> str:
        return (
            f"seed {self.stage.seed}: {len(self.stage.struck)} faults and "
            f"{len(self.progress.confirmed):,} messages in {time.monotonic() - self.began:.0f} s"
        )

    def check(self) -> None:
        assert not self.progress.missing
        for actor in self.stage.actors:
            assert "Traceback" not in actor.stderr, actor.stderr
            for life in actor.lives:
                if life.report:
                    check_report(life, last=life is actor.life)


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counted.most_common()) or "none"


def check_report(life: Life, *, last: bool) -> None:
    """Check that a stop returns in time and reports what it leaves, and that the last one leaves nothing."""
    report = life.report
    words = f"{life.words}: {report}"
    assert report["elapsed"] <= report["timeout"] + STOP_GRACE, words
    assert report["leaks"] == [], words
    if life.actor.consumes:
        assert report["still"] == {"in_flight": 0, "waiting": 0, "connections": 0}, words
        left = report["in_flight"] or report["cut_off"] or report["unfinished"]
        assert report["clean"] == (not left), words
        assert report["clean"] or not last, words
    else:
        assert report["faults"] == [], words
        assert report["hanging"] == [], words
        assert not report["left"] or not last, words


def test_a_confirmed_message_that_was_not_handled_is_missing(tmp_path: Path) -> None:
    actor = Actor("any", "nothing", {}, tmp_path)
    actor.lives.append(Life(actor, 1, tmp_path / "any-1", cast(Any, None)))
    recorder, progress = records.Recorder(actor.life.path), Progress([actor])
    for written, missing in [
        ([records.Record(records.CONFIRMED, 1), records.Record(records.CONFIRMED, 2)], {1, 2}),
        ([records.Record(records.HANDLED, 2, nsqd=1, at=7.5)], {1}),
    ]:
        recorder.write(written)
        progress.look()
        assert progress.missing == missing
    recorder.close()
    assert progress.heard == {("any", 1): 7.5}


def _left(nsqd: Nsqd) -> list[int]:
    (topic,) = nsqd.get(f"/stats?format=json&include_clients=false&topic={TOPIC}").json()["topics"]
    (channel,) = [each for each in topic["channels"] if each["channel_name"] == CHANNEL]
    found: dict[str, Any] = channel
    return [topic["depth"], *(found[name] for name in ("depth", "in_flight_count", "deferred_count"))]


@pytest.fixture
def make_stage(
    tmp_path: Path, nsqd_factory: Factory[Nsqd], nsqlookupd_factory: Factory[Nsqlookupd]
) -> Iterator[Any]:
    made: list[Stage] = []

    def make(seed: str, pace: float) -> Stage:
        stage = Stage(seed, tmp_path, nsqd_factory, nsqlookupd_factory, pace=pace, steady=others_are_judged())
        made.append(stage)
        return stage

    yield make
    for stage in made:
        stage.close()


@pytest.mark.timeout(600)
def test_a_few_faults_lose_nothing(make_stage: Any, tell: Tell) -> None:
    # A seed that has one of nearly everything.
    play = Play(make_stage(os.environ.get("NSQ_CHAOS_SHORT_SEED", "short 3711"), 0.3), tell)
    play.run(faults=10, messages=2000, longest=0.5)
    play.say()
    play.check()


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", os.environ.get("NSQ_CHAOS_SEED", "1 2 3 4").split())
def test_many_faults_lose_nothing(make_stage: Any, seed: str, tell: Tell) -> None:
    faults = int(os.environ.get("NSQ_CHAOS_FAULTS", "250"))
    messages = int(os.environ.get("NSQ_CHAOS_MESSAGES", "250000"))
    play = Play(make_stage(seed, 0.05), tell)
    try:
        play.run(faults, messages)
    finally:
        play.say()
    play.check()
