from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import (
    BadMessage,
    BadTopic,
    ExtNotSupported,
    InvalidCommand,
    MpubFailed,
    NotLeader,
    PubFailed,
    ServerError,
    TooMuchWaiting,
    TopicNotExist,
    server_error,
)
from nsq.partitioned.table import (
    PUBLISH,
    Cluster,
    ClusterAnswer,
    Refresh,
    TopicAnswer,
    _elect,
    retry_pause,
    rule_of,
)
from nsq.partitioned.wire import Meta

A, B, C = "10.0.0.1:4150", "10.0.0.2:4150", "10.0.0.3:4150"


def answer(leaders: dict[int, str], count: int = 2, *, leader: str = "", known: bool = True) -> ClusterAnswer:
    topic = TopicAnswer(leaders, Meta(count)) if known else TopicAnswer(known=False, reason="Key not found")
    return ClusterAnswer("partitioned", ("l1", "l2", "l3"), leader, {"orders": topic})


def test_the_kind_is_unknown_until_an_nsqlookupd_tells() -> None:
    cluster = Cluster()
    assert str(cluster.kind) == "None"
    assert cluster.table("orders").known is None
    cluster.heard("l1", ClusterAnswer("original", nsqds=frozenset({A})), 1.0)
    assert (cluster.kind, cluster.nsqds()) == ("original", frozenset({A}))


def test_a_pinned_kind_stays() -> None:
    cluster = Cluster("partitioned")
    cluster.heard("l1", ClusterAnswer("original"), 1.0)
    assert cluster.kind == "partitioned"


def test_answers_are_merged_and_missing_partitions_named() -> None:
    cluster = Cluster()
    cluster.heard("l1", answer({0: A}, 4), 1.0)
    cluster.heard("l2", answer({2: B}, 4), 1.0)
    table = cluster.table("orders")
    assert (dict(table.leaders), table.missing, table.incomplete) == ({0: A, 2: B}, (1, 3), True)
    cluster.heard("l1", answer({0: A, 1: A, 3: B}, 4), 2.0)
    assert (cluster.table("orders").missing, cluster.table("orders").incomplete) == ((), False)


@pytest.mark.parametrize(
    ("answers", "lookupds_leader", "before", "leader"),
    [
        ({"l1": A, "l2": B, "l3": B}, "l1", {0: B}, A),
        ({"l1": A, "l2": B, "l3": B}, "", {0: A}, B),  # most say so
        ({"l1": A, "l2": B}, "", {0: A}, A),  # a tie: the one before
        ({"l1": A, "l2": B}, "", {0: B}, B),
    ],
)
def test_the_nsqlookupds_leader_is_right_then_most_of_them_then_the_table_before(
    answers: dict[str, str], lookupds_leader: str, before: dict[int, str], leader: str
) -> None:
    cluster = Cluster()
    for lookupd in answers:
        cluster.heard(lookupd, answer(before), 1.0)
    for lookupd, node in answers.items():
        cluster.heard(lookupd, answer({0: node}, leader=lookupds_leader), 2.0)
    assert cluster.table("orders").leaders[0] == leader


@pytest.mark.parametrize(
    "change", [lambda each: each.failed("l1"), lambda each: each.refuse("orders", 0, A, 2.0)]
)
def test_another_candidate_leads_after_a_failure_of_the_nsqlookupds_leader_and_after_a_refusal(
    change: Callable[[Cluster], object],
) -> None:
    cluster = Cluster()
    cluster.heard("l1", answer({0: A}, leader="l1"), 1.0)
    cluster.heard("l2", answer({0: B}, leader="l1"), 1.0)
    assert cluster.table("orders").leaders[0] == A
    change(cluster)
    assert cluster.table("orders").leaders[0] == B


def test_the_table_is_kept_when_every_lookup_fails() -> None:
    cluster = Cluster()
    cluster.heard("l1", answer({0: A, 1: B}), 1.0)
    before = cluster.table("orders")
    cluster.failed("l1")
    cluster.keep_only([])
    assert cluster.table("orders") == before


def test_a_topic_is_unknown_only_when_no_nsqlookupd_knows_it() -> None:
    cluster = Cluster()
    cluster.heard("l1", answer({}, known=False), 1.0)
    assert (cluster.table("orders").known, cluster.table("orders").reason) == (False, "Key not found")
    cluster.heard("l2", answer({0: A}), 1.0)
    assert cluster.table("orders").known is True


def test_a_node_that_refuses_is_left_out_until_it_is_named_again() -> None:
    cluster = Cluster()
    cluster.heard("l1", answer({0: A, 1: B}), 1.0)
    cluster.refuse("orders", 0, A, 2.0)
    assert dict(cluster.table("orders").leaders) == {1: B}
    cluster.heard("l1", answer({0: A, 1: B}), 1.9)  # asked before the refusal
    assert dict(cluster.table("orders").leaders) == {1: B}
    cluster.heard("l1", answer({0: A, 1: B}), 2.1)
    assert dict(cluster.table("orders").leaders) == {0: A, 1: B}


def test_a_refusal_elects_the_leader_of_its_partition_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that leaves is refused for each of its partitions, of which it may have a thousand."""
    elected: list[dict[int, str]] = []

    def elect(*arguments: Any) -> dict[int, str]:
        elected.append(_elect(*arguments))
        return elected[-1]

    cluster = Cluster()
    for lookupd, other in (("l1", A), ("l2", B)):
        cluster.heard(lookupd, answer({0: A, 1: other, 2: C}, 3, leader="l1"), 1.0)
    monkeypatch.setattr("nsq.partitioned.table._elect", elect)
    cluster.refuse("orders", 1, A, 2.0)
    cluster.refuse("orders", 0, A, 2.0)
    assert elected == [{1: B}, {}]
    assert cluster.table("orders").leaders == {1: B, 2: C}


def test_a_node_that_refuses_again_and_again_is_left_out_longer_each_time() -> None:
    cluster, now = Cluster(), 1.0
    cluster.heard("l1", answer({0: A}), now)
    for pause in (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        for _ in range(10):  # publishes that were under way together: they count as one
            cluster.refuse("orders", 0, A, now)
        cluster.heard("l1", answer({0: A}), now + max(0.0, pause - 0.01))
        assert cluster.table("orders").leaders == {}
        now += pause + 0.01
        cluster.heard("l1", answer({0: A}), now)
        assert cluster.table("orders").leaders == {0: A}
    cluster.refuse("orders", 0, A, now + 61.0)
    cluster.heard("l1", answer({0: A}), now + 61.01)
    assert cluster.table("orders").leaders == {0: A}


def test_a_node_that_has_refused_loses_against_other_candidates_for_a_minute() -> None:
    """Else a wrong leader of the nsqlookupds would have clients go to the node and back with every answer."""
    cluster = Cluster()
    leaders = []
    for time, lookupd, node in [
        *[(1.0, "l1", A), (1.0, "l2", B), (3.0, "l1", A), (5.0, "l2", B), (6.0, "l1", A)],
    ]:
        if time == 3.0:
            cluster.refuse("orders", 0, A, 2.0)
        elif time == 5.0:
            cluster.refuse("orders", 0, B, 4.0)
        cluster.heard(lookupd, answer({0: node}, leader="l1"), time)
        leaders.append(cluster.table("orders").leaders[0])
    assert leaders == [A, A, B, A, A]  # B is the last one that has refused
    cluster.refuse("orders", 0, A, 7.0)
    cluster.heard("l2", answer({0: B}, leader="l1"), 8.0)
    cluster.heard("l1", answer({0: A}, leader="l1"), 66.0)
    assert cluster.table("orders").leaders[0] == B
    for lookupd, node in {"l1": A, "l2": B}.items():
        cluster.heard(lookupd, answer({0: node}, leader="l1"), 68.0)
    assert cluster.table("orders").leaders[0] == A


def test_a_node_that_refused_before_it_was_named_again_stays_when_no_answer_is_left() -> None:
    cluster = Cluster()
    cluster.heard("l1", answer({0: A}), 1.0)
    cluster.refuse("orders", 0, A, 2.0)
    cluster.heard("l1", answer({0: A}), 3.0)
    cluster.heard("l1", ClusterAnswer("partitioned", problems={"orders": "it is broken"}), 4.0)
    cluster.refuse("orders", 1, B, 5.0)
    assert cluster.table("orders").leaders == {0: A}
    cluster.refuse("orders", 0, A, 6.0)
    assert cluster.table("orders").leaders == {}


def test_partitions_beyond_their_number_are_left_out() -> None:
    cluster = Cluster()
    cluster.heard("l1", answer({0: A, 7: B}, 2), 1.0)
    assert dict(cluster.table("orders").leaders) == {0: A}


_leaders = st.dictionaries(st.integers(0, 5), st.sampled_from([A, B, C]), max_size=6)
_events = st.lists(
    st.one_of(
        st.tuples(st.just("heard"), st.sampled_from(["l1", "l2", "l3"]), _leaders),
        st.tuples(st.just("failed"), st.sampled_from(["l1", "l2", "l3"]), st.just({})),
        st.tuples(
            st.just("refuse"), st.sampled_from([A, B, C]), st.dictionaries(st.integers(0, 5), st.just(A))
        ),
        st.tuples(st.just("keep"), st.sampled_from(["l1", "l2", "l3"]), st.just({})),
    ),
    max_size=30,
)


@given(_events)
def test_a_table_names_only_what_was_answered_and_not_refused_since(
    events: list[tuple[str, str, dict[int, str]]],
) -> None:
    cluster = Cluster()
    said: set[tuple[int, str]] = set()
    refused: dict[tuple[int, str], float] = {}
    asked: dict[str, float] = {}
    for number, (event, who, leaders) in enumerate(events):
        now = float(number)
        before = cluster.table("orders")
        if event == "heard":
            cluster.heard(who, answer(leaders, 6, leader="l2"), now)
            said |= set(leaders.items())
            asked[who] = now
        elif event == "failed":
            cluster.failed(who)
        elif event == "refuse":
            for partition in leaders:
                cluster.refuse("orders", partition, who, now)
                refused[partition, who] = now
        else:
            cluster.keep_only({who})
        table = cluster.table("orders")
        assert set(table.leaders.items()) <= said
        for key in table.leaders.items():
            assert refused.get(key, -1.0) < max(asked.values())
        assert set(table.leaders) | set(table.missing) >= set(range(6 if table.meta else 0))
        if event == "failed":
            assert table.leaders or not before.leaders or asked  # one failure alone empties no table
    once_all_answer = Cluster()
    for lookupd in ("l1", "l2", "l3"):
        once_all_answer.heard(lookupd, answer({0: C}, 6), 99.0)
        cluster.heard(lookupd, answer({0: C}, 6), 99.0)
    assert dict(cluster.table("orders").leaders) == dict(once_all_answer.table("orders").leaders) == {0: C}


# When to ask again.


@pytest.mark.parametrize(
    ("interval", "urgent", "pauses"),
    [
        (60.0, True, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]),  # a publish waits
        (5.0, False, [1.0, 2.0, 4.0, 5.0, 5.0]),
    ],
)
def test_an_incomplete_topic_is_asked_for_with_growing_pauses_and_sooner_while_a_publish_waits(
    interval: float, urgent: bool, pauses: list[float]
) -> None:
    refresh, now = Refresh(interval), 100.0
    assert refresh.due_at(urgent=True, incomplete=True) < now
    for pause in pauses:
        refresh.asked(now)
        assert refresh.due_at(urgent=urgent, incomplete=True) - now == pytest.approx(pause)
        now += pause
    assert refresh.due_at(urgent=False, incomplete=False) == math.inf
    refresh.asked(now)
    assert refresh.due_at(urgent=True, incomplete=False) == pytest.approx(now + 0.1)


def test_news_let_the_pauses_begin_anew() -> None:
    refresh = Refresh(60.0)
    for now in (100.0, 101.0, 102.0, 103.0):
        refresh.asked(now)
    assert refresh.due_at(urgent=True, incomplete=True) == pytest.approx(103.8)
    refresh.hurry()
    assert refresh.due_at(urgent=True, incomplete=True) == pytest.approx(103.1)


# What answers to a publish mean.


@pytest.mark.parametrize(
    ("error", "took", "tries", "look_up", "closes", "stored"),
    [
        (NotLeader(""), 0.1, math.inf, True, False, False),
        (NotLeader(""), 1.1, math.inf, True, False, True),
        (TopicNotExist(""), 0.1, math.inf, True, True, False),
        (PubFailed(""), 0.1, math.inf, False, False, True),
        (MpubFailed(""), 0.1, math.inf, False, False, True),
        (TooMuchWaiting(""), 0.1, math.inf, False, True, False),
        (InvalidCommand(""), 0.1, 1, False, True, False),
        (ExtNotSupported(""), 0.1, 1, True, False, False),
        (BadTopic(""), 0.1, 0, False, True, False),
        (BadMessage(""), 0.1, 0, False, True, False),
        (server_error(b"E_UNAUTHORIZED no"), 0.1, 0, False, True, False),
        (server_error(b"E_AUTH_FAILED no"), 0.1, math.inf, False, True, False),
        (server_error(b"E_OF_THE_FUTURE"), 0.1, 0, False, False, False),
    ],
)
def test_each_answer_has_its_rule(
    error: ServerError, took: float, tries: float, look_up: bool, closes: bool, stored: bool
) -> None:
    rule = rule_of(error, took)
    assert (rule.tries, rule.look_up, rule.closes, rule.maybe_stored) == (tries, look_up, closes, stored)
    assert rule_of(error, took, mpub_ext=True).closes


def test_the_rules_agree_with_the_recordings_on_which_connections_go_on() -> None:
    rows = json.loads(
        (Path(__file__).parents[2] / "golden/partitioned/errors_observed.json").read_text("utf-8")
    )
    for row in rows:
        error = server_error(bytes.fromhex(row["example_frame_hex"])[8:])
        if row["command"] in ("PUB", "MPUB", "PUB_TRACE", "PUB_EXT") and type(error) in PUBLISH:
            assert rule_of(error).closes == row["closes_connection"], row


@given(st.integers(0, 1000), st.floats(0.0, 1.0, exclude_max=True))
def test_the_pause_between_tries_grows_up_to_a_second(tries: int, chance: float) -> None:
    pause = retry_pause(tries, lambda: chance)
    ceiling = min(1.0, 0.05 * 2.0 ** min(max(tries - 1, 0), 10))
    assert ceiling / 2 <= pause <= ceiling
