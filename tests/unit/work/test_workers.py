from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq.work.workers import Slots, health_of, memory_used


@pytest.fixture
def slots() -> Iterator[Slots]:
    slots = Slots(2)
    yield slots
    slots.close()


def report(*ok: bool, at: float = 100.0) -> dict[str, Any]:
    consumers = [
        {"topic": f"topic-{place}", "ok": each, "summary": "x" * 500} for place, each in enumerate(ok)
    ]
    return {"pid": 1, "at": at, "consumers": consumers}


@pytest.mark.parametrize(
    ("reports", "ok"),
    [
        ([report(True), report(True)], True),
        ([report(True)], False),  # the other one is starting
        ([report(True), report(True, False)], False),
        ([report(True), report(True, at=80.0)], False),  # it is stuck
        ([report(*[True] * 200), report(*[True] * 200)], True),
        ([report(True), report(*[True] * 199, False)], False),
    ],
)
def test_the_page_is_well_if_each_process_and_consumer_is(
    slots: Slots, reports: list[dict[str, Any]], ok: bool
) -> None:
    for slot, each in enumerate(reports):
        slots.write(slot, each)

    well, page = health_of(slots, processes=2, now=100.0)

    assert (well, page["ok"], len(page["processes"])) == (ok, ok, len(reports))


def test_a_report_that_is_being_written_is_not_read(slots: Slots) -> None:
    slots.write(0, report(True))
    slots._memory[20:22] = b"??"

    assert slots.read(0) == {}


@pytest.mark.parametrize(("platform", "unit"), [("darwin", 1), ("freebsd14", 1024)])
def test_without_proc_the_most_memory_that_was_used_counts(
    platform: str, unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq.work.workers.Path", lambda _: Path("/nowhere"))
    monkeypatch.setattr("sys.platform", platform)

    assert memory_used() == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
