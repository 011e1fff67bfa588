"""The user's hooks on addresses, and what happens when they fail."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from nsq.consumer.admission import Admission
from nsq.consumer.complaints import Complaints

LISTED = frozenset(["a:1", "b:2"])


def admission(
    rewrite: Callable[[str], Any] | None = None, accept: Callable[[list[str]], Iterable[Any]] | None = None
) -> Admission:
    return Admission(rewrite, accept, Complaints())


def broken(_: object) -> Any:
    raise RuntimeError("my fault")


def test_without_hooks_everything_is_admitted() -> None:
    assert admission().admit(LISTED) == LISTED


def test_rewritten_addresses_are_accepted_in_their_order() -> None:
    seen: list[list[str]] = []

    def accept(addresses: list[str]) -> list[str]:
        seen.append(addresses)
        return addresses[:1]

    subject = admission(lambda address: f"proxy-{address}", accept)
    assert subject.admit(LISTED) == frozenset(["proxy-a:1"])
    assert seen == [["proxy-a:1", "proxy-b:2"]]


@pytest.mark.parametrize("rewrite", [broken, lambda address: None], ids=["raises", "returns None"])
def test_an_address_whose_rewriting_fails_is_used_as_it_was(
    rewrite: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    subject = admission(lambda address: rewrite(address) if address == "a:1" else "c:3")
    assert subject.admit(LISTED) == frozenset(["a:1", "c:3"])
    assert "rewrite_address('a:1') failed; the address is used as it is" in caplog.text


@pytest.mark.parametrize(
    "accept", [broken, lambda addresses: None, lambda addresses: "a:1", lambda addresses: [1]]
)
def test_when_accepting_fails_the_answer_is_none(
    accept: Callable[[list[str]], Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert admission(accept=accept).admit(LISTED) is None
    assert "accept_addresses failed; its addresses are left out" in caplog.text


def test_the_same_failure_is_logged_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    hooks: list[Callable[[list[str]], list[str]]] = [broken, broken, list, broken]
    subject = admission(accept=lambda addresses: hooks.pop(0)(addresses))
    with caplog.at_level(logging.ERROR, "nsq.consumer"):
        answers = [subject.admit(LISTED) for _ in range(4)]
    assert answers == [None, None, LISTED, None]
    assert len(caplog.records) == 2
