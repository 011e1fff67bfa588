from __future__ import annotations

import pytest

from nsq.consumer.reports import StopReport


def test_a_stop_that_left_nothing_is_true() -> None:
    assert StopReport(clean=True)
    assert not StopReport(clean=False, in_flight=3, unfinished_threads=["nsq-a/b-handler-0"])


def test_reports_are_snapshots() -> None:
    with pytest.raises(AttributeError):
        StopReport(clean=True).clean = False  # type: ignore[misc]
