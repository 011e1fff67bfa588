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


def test_a_duplicate_without_a_reason_is_unexplained(written: Written) -> None:
    written.life("consumer", 1, handled(1, 5.0), handled(1, 5.5, attempts=2))
    verdict = written.judge(Injury("kill nsqd", 9.0, 9.5, frozenset({("consumer", 0)})))
    assert len(verdict.unexplained) == 1
    assert not verdict.duplicates


@pytest.mark.parametrize(
    ("reason", "first", "records", "injuries"),
    [
        ("nsqd killed before the answer lasted", {}, [], [("kill nsqd", 5.2)]),
        ("nsqd stopped before the answer arrived", {}, [], [("restart nsqd", 5.2)]),
        ("consumer killed before its answer arrived", {"killed": 5.2}, [], []),
        ("consumer stopped before its answer arrived", {"timeout": 0.0}, [], []),
        ("answered too late", {}, [Record(REFUSED, 0, 0, 0, 5.3, 5.3)], []),
        ("connection lost before the answer arrived", {}, [Record(LOST, 0, 0, 0, 5.3, 5.3)], []),
    ],
)
def test_every_reason_is_in_the_report(
    written: Written,
    reason: str,
    first: dict[str, Any],
    records: list[Record],
    injuries: list[tuple[str, float]],
) -> None:
    written.life("consumer", 1, handled(1, 5.0), *records, **first)
    written.life("consumer", 2, handled(1, 5.5))
    verdict = written.judge(
        *(Injury(kind, at, at + 0.1, frozenset({("consumer", 0)})) for kind, at in injuries)
    )
    assert verdict.duplicates == {reason: 1}
    assert verdict.unexplained == []


def test_a_message_published_again_after_an_uncertain_publish_has_two_copies(written: Written) -> None:
    """Each copy may also be delivered more than once, for a reason."""
    written.life("publisher", 1, published(DOUBTED, 1))
    copies = handled(1, 5.0, attempts=2), handled(1, 5.0, attempts=2, copy=8)
    written.life("consumer", 2, *copies)
    assert written.judge().duplicates == {"published again after PublishUncertain": 1}
    assert not written.judge().unexplained
    written.life("consumer", 3, handled(1, 5.5, attempts=3, copy=8))
    assert len(written.judge().unexplained) == 1


def test_two_copies_without_a_doubt_are_unexplained(written: Written) -> None:
    written.life("consumer", 1, handled(1, 5.0), handled(1, 5.5, copy=8))
    assert len(written.judge().unexplained) == 1


def test_a_message_redelivered_after_its_timeout_was_answered_too_late(written: Written) -> None:
    written.life("consumer", 1, handled(1, 5.0), handled(1, 5.0 + MSG_TIMEOUT, attempts=2))
    assert written.judge().duplicates == {"answered too late": 1}


def test_recovery_lasts_from_the_end_of_the_fault_to_the_next_message(written: Written) -> None:
    written.life("consumer", 1, handled(1, 5.0), handled(2, 7.5, nsqd=1), handled(3, 8.0))
    stall = Injury("stall", 5.5, 7.0, frozenset({("consumer", 0)}))
    assert written.judge(stall).recoveries == [(1.0, "stall consumer")]


def test_the_last_of_overlapping_faults_counts(written: Written) -> None:
    written.life("consumer", 1, handled(1, 9.0))
    pair = frozenset({("consumer", 0)})
    verdict = written.judge(Injury("cut", 5.0, 5.0, pair), Injury("reset", 6.0, 6.0, pair))
    assert (verdict.recoveries, verdict.overlapping) == ([(3.0, "reset consumer")], 1)


def test_a_consumer_that_gets_no_more_messages_has_not_recovered(written: Written) -> None:
    written.life("consumer", 1, handled(1, 5.0))
    verdict = written.judge(Injury("cut", 6.0, 6.0, frozenset({("consumer", 0)})))
    assert verdict.unrecovered == ["cut: nothing came to consumer from nsqd 0"]
    assert verdict.recovery(0.5) == 0.0
