"""Hooks around a publish: whose bodies each sees, and which ends are called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nsq.errors import UsageError
from nsq.producer.hooks import Watched


class Hook:
    """Adds its name to bodies, and notes its end."""

    def __init__(self, name: str, notes: list[Any], headers: dict[str, str] | None = None) -> None:
        self.name, self.notes, self.headers = name, notes, headers
        self.raises: BaseException | None = None
        self.ends_with: BaseException | None = None
        self.drops = False

    def __repr__(self) -> str:
        return f"<Hook {self.name}>"

    def __call__(self, topic: str, bodies: list[bytes]) -> Any:
        if self.raises is not None:
            raise self.raises
        changed = [body + self.name.encode() for body in bodies][self.drops :]
        return (changed, self.end) if self.headers is None else (changed, self.end, self.headers)

    def end(self, error: BaseException | None) -> None:
        self.notes.append((self.name, error))
        if self.ends_with is not None:
            raise self.ends_with


@pytest.fixture
def notes() -> list[Any]:
    return []


@pytest.fixture
def hooks(notes: list[Any]) -> list[Hook]:
    return [Hook("a", notes), Hook("b", notes), Hook("c", notes)]


def around(hooks: list[Any], **options: Any) -> Watched:
    return Watched(hooks, None, "orders", [b"1", b"2"], options)  # type: ignore[arg-type]


def test_the_first_sees_the_bodies_first_and_ends_last(hooks: list[Hook], notes: list[Any]) -> None:
    with around(hooks) as watched:
        assert watched.bodies == [b"1abc", b"2abc"]
    assert notes == [("c", None), ("b", None), ("a", None)]


def test_an_end_that_raises_keeps_no_other_from_being_called(
    hooks: list[Hook], notes: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    hooks[1].ends_with = ValueError("x")
    failed = UsageError("failed")
    around(hooks).end(failed)
    assert notes == [("c", failed), ("b", failed), ("a", failed)]
    assert "the end of around_publish failed" in caplog.text


@pytest.mark.parametrize("error", [UsageError("x"), KeyboardInterrupt()])
def test_a_hook_that_raises_ends_those_that_have_begun(
    hooks: list[Hook], notes: list[Any], error: BaseException
) -> None:
    hooks[2].raises = error
    with pytest.raises(type(error)):
        around(hooks)
    assert notes == [("b", error), ("a", error)]


def test_a_hook_that_returns_another_number_of_bodies_is_named(hooks: list[Hook], notes: list[Any]) -> None:
    hooks[1].drops = True
    with pytest.raises(UsageError, match="<Hook b> returned 1 bodies for 2"):
        around(hooks)
    assert [name for name, _ in notes] == ["b", "a"]


def test_headers_are_merged_and_the_callers_win_then_the_innermost(notes: list[Any]) -> None:
    headers = [{"x": "a", "y": "a", "z": "a"}, None, {"x": "c", "z": "c"}]
    hooks = [Hook(name, notes, some) for name, some in zip("abc", headers, strict=True)]
    assert around(hooks, headers={"z": "mine"}).options == {"headers": {"x": "c", "y": "a", "z": "mine"}}


def test_the_address_of_the_nsqd_goes_to_all_that_want_it(notes: list[Any]) -> None:
    class End:
        nsqd_address = ""

        def __call__(self, error: object) -> None:
            notes.append(self.nsqd_address)

    watched = around([lambda _, bodies: (bodies, End()), lambda _, bodies: (bodies, lambda error: None)])
    published: Any = SimpleNamespace(endpoint=SimpleNamespace(address="10.0.0.2:4150"))
    watched.publish = published
    watched.end(None)
    assert notes == ["10.0.0.2:4150"]
