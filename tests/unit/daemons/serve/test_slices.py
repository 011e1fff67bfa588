from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from nsq.daemons.serve import slices
from nsq.daemons.serve.slices import Slices


@pytest.fixture(autouse=True)
def one_step_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_SECONDS", -1.0)


def steps(name: str, count: int, said: list[str]) -> Iterator[None]:
    for _ in range(count):
        said.append(name)
        yield


def test_sliced_works_take_turns_with_each_other_and_other_tasks() -> None:
    said: list[str] = []

    async def run() -> None:
        made = Slices()
        works = asyncio.gather(*(made.run(steps(name, 3, said)) for name in "ab"))
        for _ in range(3):
            said.append("-")
            await asyncio.sleep(0)
        await works

    asyncio.run(run())
    assert "".join(said) == "a-a-b-abb"


def test_short_work_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_SECONDS", 60.0)

    async def run() -> None:
        said: list[str] = []
        assert Slices().run(steps("a", 3, said)).done()
        assert said == ["a"] * 3

    asyncio.run(run())


def test_a_cancelled_or_failed_work_does_not_stop_the_others() -> None:
    def failing() -> Iterator[None]:
        yield
        raise KeyError("lost")

    async def run() -> list[str]:
        said: list[str] = []
        made = Slices()
        cancelled, failed = made.run(steps("cancelled", 100, said)), made.run(failing())
        rest = made.run(steps("rest", 50, said))
        cancelled.cancel()
        with pytest.raises(KeyError):
            await failed
        await rest
        return said

    said = asyncio.run(run())
    assert (said.count("rest"), said.count("cancelled")) == (50, 1)
