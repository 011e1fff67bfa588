from __future__ import annotations

import gc
import os

import pytest

from nsq.threads import forks
from tests.fakes.forks import in_child


class Owner:
    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.error = error
        self.abandoned = 0

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def abandon(self) -> None:
        self.abandoned += 1
        if self.error is not None:
            raise self.error


def test_owners_are_abandoned_in_a_child_and_not_in_the_parent() -> None:
    owners = [Owner("one"), Owner("other")]
    for owner in owners:
        forks.abandon_in_children(owner)
        forks.abandon_in_children(owner)
    assert in_child(lambda: os._exit(sum(owner.abandoned for owner in owners))) == 2
    assert [owner.abandoned for owner in owners] == [0, 0]


def test_an_owner_that_fails_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    owners = [Owner("one", KeyError("x")), Owner("other", KeyError("x"))]
    for owner in owners:
        forks.abandon_in_children(owner)
    forks._in_child()
    assert [owner.abandoned for owner in owners] == [1, 1]
    assert "<one> of the parent process could not be let go of" in caplog.text
    assert "<other>" in caplog.text


def test_an_owner_that_is_gone_is_forgotten() -> None:
    owner = Owner("short-lived")
    forks.abandon_in_children(owner)
    assert "<short-lived>" in map(repr, forks._everyone)
    del owner
    gc.collect()
    assert "<short-lived>" not in map(repr, forks._everyone)
