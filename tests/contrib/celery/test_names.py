"""Names of topics and channels, and which queue takes a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.contrib.celery.names import nsq_name, takes
from nsq.wire.names import check_topic


@pytest.mark.parametrize(
    ("name", "transient", "topic"),
    [
        ("celery", False, "celery"),
        ("celery.pidbox", True, "celery.pidbox#ephemeral"),
        ("w1@host", False, "w1_x40_host"),
        ("w1_x40_host", False, "w1_x5f_x40_host"),
        ("snake_case", False, "snake_case"),
        ("a b/c", False, "a_x20_b_x2f_c"),
    ],
)
def test_celerys_names_stay_readable(name: str, transient: bool, topic: str) -> None:
    assert nsq_name(name, transient=transient) == topic


@given(st.text(min_size=1, max_size=100), st.booleans())
def test_every_name_is_one_that_nsqd_accepts(name: str, transient: bool) -> None:
    check_topic(nsq_name(name, transient=transient))


@given(st.text("ab_x40@", min_size=1, max_size=80), st.text("ab_x40@", min_size=1, max_size=80))
def test_two_names_never_become_one(one: str, other: str) -> None:
    assert (nsq_name(one, transient=False) == nsq_name(other, transient=False)) == (one == other)


def test_long_names_that_begin_alike_stay_apart() -> None:
    assert nsq_name("a" * 200 + "1", transient=True) != nsq_name("a" * 200 + "2", transient=True)


@pytest.mark.parametrize(
    ("kind", "keys", "taken", "refused"),
    [
        ("direct", {"a", "b"}, ["a", "b"], ["", "c", "a.b"]),
        ("fanout", {""}, ["", "anything"], []),
        ("topic", {"t.*"}, ["t.1", "t.x"], ["t", "t.1.2", "x.1"]),
        ("topic", {"#"}, ["", "a", "a.b.c"], []),
        ("topic", {"worker.#"}, ["worker", "worker.online", "worker.a.b"], ["task.sent"]),
        ("topic", {"#.error", "x"}, ["error", "a.b.error", "x"], ["error.a"]),
    ],
)
def test_a_queue_takes_what_its_binding_says(
    kind: str, keys: set[str], taken: list[str], refused: list[str]
) -> None:
    assert [key for key in taken if not takes(kind, keys, key)] == []
    assert [key for key in refused if takes(kind, keys, key)] == []
