"""What is amiss is said once."""

from __future__ import annotations

from nsq.consumer.complaints import Complaints


def test_said_once_and_again_when_it_changes_or_comes_back() -> None:
    subject = Complaints()
    assert subject.is_news("a", "refused")
    assert not subject.is_news("a", "refused")
    assert subject.is_news("b", "refused")
    assert subject.is_news("a", "timed out")
    assert subject.settle("a")
    assert not subject.settle("a")
    assert subject.is_news("a", "timed out")
