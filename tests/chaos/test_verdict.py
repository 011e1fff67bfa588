"""Tests of the verdict of the chaos tests: it must report lost and inexplicable messages, and a missing
recovery.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.chaos.actors import Actor, Life
from tests.chaos.records import CONFIRMED, DOUBTED, HANDLED, LOST, REFUSED, Record, Recorder
from tests.chaos.stage import MSG_TIMEOUT, Injury
from tests.chaos.verdict import Progress, Verdict, judge


class Written:
    """Actors whose records a test writes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.actors: dict[str, Actor] = {}

    def life(self, name: str, number: int, *records: Record, **known: Any) -> Life:
        path = self._directory / f"{name}-{number}"
        recorder = Recorder(path)
        recorder.write(records)
        recorder.close()
        actor = self.actors.setdefault(name, Actor(name, "nothing", {}, self._directory))
        life = Life(actor, number, path, cast(Any, None), began=0.0, **known)
        actor.lives.append(life)
        return life

    def judge(self, *injuries: Injury) -> Verdict:
        return judge(self.actors.values(), list(injuries))


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def handled(message: int, since: float, *, nsqd: int = 0, attempts: int = 1, copy: int = 7) -> Record:
    return Record(HANDLED, message, nsqd, attempts, since, since + 0.01, copy)


def published(kind: bytes, message: int) -> Record:
    return Record(kind, message, 0, 0, 1.0, 1.0)


def test_a_confirmed_message_that_was_not_handled_is_missing(written: Written) -> None:
    written.life("publisher", 1, published(CONFIRMED, 1), published(CONFIRMED, 2), published(DOUBTED, 3))
    written.life("consumer", 2, handled(1, 5.0))
    progress = Progress(written.actors.values())
    progress.look()
    assert progress.missing == {2}
    written.life("consumer", 3, handled(2, 6.0))
    progress.look()
    assert progress.missing == set()


NSQD_0 = frozenset({("consumer", 0)})


@pytest.mark.parametrize(
    ("reason", "first", "records", "injuries"),
    [
        ("", {}, [], [("kill nsqd", 9.0)]),
        ("nsqd killed before the answer lasted", {}, [], [("kill nsqd", 5.2)]),
        ("nsqd stopped before the answer arrived", {}, [], [("restart nsqd", 5.2)]),
        ("consumer killed before its answer arrived", {"killed": 5.2}, [], []),
        ("consumer stopped before its answer arrived", {"timeout": 0.0}, [], []),
        ("answered too late", {}, [Record(REFUSED, 0, 0, 0, 5.3, 5.3)], []),
        ("connection lost before the answer arrived", {}, [Record(LOST, 0, 0, 0, 5.3, 5.3)], []),
    ],
)
@pytest.mark.parametrize("copy", [7, 8], ids=["redelivered", "another copy"])
def test_a_duplicate_has_its_reason_or_is_unexplained(
    written: Written,
    reason: str,
    first: dict[str, Any],
    records: list[Record],
    injuries: list[tuple[str, float]],
    copy: int,
) -> None:
    written.life("consumer", 1, handled(1, 5.0), *records, **first)
    written.life("consumer", 2, handled(1, 5.5, copy=copy))
    verdict = written.judge(*(Injury(kind, at, at + 0.1, NSQD_0) for kind, at in injuries))
    assert verdict.duplicates == ({reason: 1} if reason else {})
    assert len(verdict.unexplained) == (not reason)


def test_a_message_published_again_after_an_uncertain_publish_has_two_copies(written: Written) -> None:
    """Each copy may also be delivered more than once, for a reason."""
    written.life("publisher", 1, published(DOUBTED, 1))
    copies = handled(1, 5.0, attempts=2), handled(1, 5.0, attempts=2, copy=8)
    written.life("consumer", 2, *copies)
    assert written.judge().duplicates == {"published again after PublishUncertain": 1}
    assert not written.judge().unexplained
    written.life("consumer", 3, handled(1, 5.5, attempts=3, copy=8))
    assert len(written.judge().unexplained) == 1


def test_a_message_redelivered_after_its_timeout_was_answered_too_late(written: Written) -> None:
    written.life("consumer", 1, handled(1, 5.0), handled(1, 5.0 + MSG_TIMEOUT, attempts=2))
    assert written.judge().duplicates == {"answered too late": 1}


@pytest.mark.parametrize(
    ("messages", "faults", "recoveries", "overlapping"),
    [
        ([(1, 5.0, 0), (2, 7.5, 1), (3, 8.0, 0)], [("stall", 5.5, 7.0)], [(1.0, "stall consumer")], 0),
        ([(1, 9.0, 0)], [("cut", 5.0, 5.0), ("reset", 6.0, 6.0)], [(3.0, "reset consumer")], 1),
        ([(1, 5.0, 0)], [("cut", 6.0, 6.0)], [], 0),
    ],
    ids=["from the end of a fault to the next message", "the last of several faults counts", "never"],
)
def test_a_recovery_is_measured(
    written: Written,
    messages: list[tuple[int, float, int]],
    faults: list[tuple[str, float, float]],
    recoveries: list[tuple[float, str]],
    overlapping: int,
) -> None:
    written.life("consumer", 1, *[handled(number, since, nsqd=nsqd) for number, since, nsqd in messages])
    verdict = written.judge(*(Injury(*fault, NSQD_0) for fault in faults))
    assert (verdict.recoveries, verdict.overlapping) == (recoveries, overlapping)
    assert verdict.unrecovered == ([] if recoveries else ["cut: nothing came to consumer from nsqd 0"])
