"""The discovery thread, with a fake client, fake nsqlookupds and a fake clock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from nsq.config import Config
from nsq.connection.endpoint import Key, Wanted
from nsq.connection.subscription import Subscription
from nsq.discovery.directory import Lookupd
from nsq.discovery.lookups import Asker, Discovery
from nsq.errors import ApiError, ConfigError, UsageError

A, B, C = "a:4150", "b:4150", "c:4150"
L1, L2 = "l1:4161", "http://l2:4161/?token=s3cret"
URL1, URL2 = "http://l1:4161/", "http://l2:4161/"
NAME = "nsq-orders/billing"
ORDERS = Subscription("orders", "billing")
PATIENCE = 20.0
OF_THE_CLIENT = ("rewrite", "accept", "found", "original", "other")
#: An answer that says that the nsqlookupd belongs to a partitioned NSQ.
PARTITIONED: list[str] = []


class World(Asker):
    """Client and asker; notes their calls. ``answers`` has, for an nsqlookupd, the nsqds that it lists; one
    with a gate answers when that opens.
    """

    def __init__(self) -> None:
        super().__init__("orders", Config())
        self.notes: list[tuple[object, ...]] = []
        self.answers: dict[str, list[str] | Exception] = {}
        self.gates: dict[str, threading.Event] = {}
        self.threads: dict[str, str] = {}  # who asked or dialed it
        self.now = 1000.0
        self.chance = 0.0  # no pause after a setback
        self._made: list[Discovery] = []
        self._changed = threading.Condition()

    def note(self, *note: object) -> None:
        with self._changed:
            self.notes.append(note)
            self._changed.notify_all()

    def clock(self) -> float:
        with self._changed:
            self._changed.notify_all()
            return self.now

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait; the discovery thread looks at the clock after each change of its state."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), self.notes

    def await_(self, *note: object, times: int = 1) -> None:
        self.until(lambda: self.notes.count(note) >= times)

    def _answer(self, verb: str, whom: str) -> list[str]:
        self.threads[whom] = threading.current_thread().name
        self.note(verb, whom)
        if whom in self.gates:
            assert self.gates[whom].wait(PATIENCE)
        answer = self.answers.get(whom, [])
        self.note("answer", whom)
        if isinstance(answer, Exception):
            raise answer
        return answer

    # Asker and client.

    def ask(self, lookupd: str) -> frozenset[str] | None:
        answer = self._answer("ask", lookupd)
        return None if answer is PARTITIONED else frozenset(answer)

    def cancel(self) -> None:
        self.note("cancel")
        for lookupd in (L1, L2):
            self.gates.get(lookupd, threading.Event()).set()

    def abandon(self) -> None:
        self.note("abandon")

    def found(self, wanted: dict[Key, Wanted]) -> None:
        self.note("found", *[each.address for each in wanted.values() if each.dial])

    def dropped(self, key: Key) -> None:
        self.note("drop", key[0])

    # Making discoveries.

    def discovery(self, nsqds: Iterable[str] = (), lookupds: Iterable[str] = (), **options: Any) -> Discovery:
        own = {each: options.pop(each) for each in OF_THE_CLIENT if each in options}
        made = Discovery(
            options.pop("subscription", ORDERS),
            Config(**{"lookupd_poll_jitter": 0.0, **options}),
            **{"found": self.found, **own},
            dropped=self.dropped,
            name=NAME,
            nsqds=nsqds,
            nsqlookupds=lookupds,
            asker=self,
            clock=self.clock,
            chance=lambda: self.chance,
        )
        self._made.append(made)
        return made

    def started(self, nsqds: Iterable[str] = (), lookupds: Iterable[str] = (), **options: Any) -> Discovery:
        made = self.discovery(nsqds, lookupds, **options)
        made.start()
        return made

    def pass_time(self, discovery: Discovery, seconds: float) -> None:
        self.now += seconds
        discovery.owner.wake()

    def close(self) -> None:
        for gate in self.gates.values():
            gate.set()
        for made in self._made:
            made.stop()
            assert not made.join(time.monotonic() + PATIENCE)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What is logged, from INFO on."""
    with caplog.at_level(logging.INFO, "nsq.discovery"):
        yield lambda: [record.getMessage() for record in caplog.records]


def last_heard(lookupd: Lookupd) -> float | None:
    return lookupd.answered_at if lookupd.failed_at is None else lookupd.failed_at


class TestReporting:
    def test_the_wanted_nsqds_are_reported_at_once_with_their_origins(self, world: World) -> None:
        world.gates[L1] = threading.Event()
        world.answers[L1] = [A, C]
        discovery = world.started([A, B], [L1])
        world.await_("found", A, B)
        assert f"{NAME}-lookupd" in [thread.name for thread in threading.enumerate()]
        world.gates[L1].set()
        world.await_("found", A, B, C)
        assert list(discovery.wanted.values()) == [
            Wanted(A, ORDERS, given=True, listed=True),
            Wanted(B, ORDERS, given=True),
            Wanted(C, ORDERS, listed=True),
        ]

    def test_a_client_that_raises_does_not_end_it(self, world: World, log: Callable[[], list[str]]) -> None:
        discovery = world.started([A], found=lambda wanted: 1 / 0)
        world.until(lambda: "which is a bug of ours" in "".join(log()))
        discovery._found = world.found
        discovery.add_nsqd(B)
        world.await_("found", A, B)

    def test_without_a_thread_for_a_question_it_says_so_and_goes_on(
        self, world: World, log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if "lookupd" not in thread.name:
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            discovery = world.started([A], [L1])
            world.until(lambda: len(log()) == 1)
        assert log() == [
            f"nsqlookupd {URL1} cannot be asked: no thread for {NAME}-ask-{URL1}: can't start new thread"
        ]
        world.pass_time(discovery, 60.0)
        world.await_("ask", L1)


class TestAsking:
    def test_an_nsqlookupd_that_does_not_answer_in_time_has_failed(self, world: World) -> None:
        world.gates[L1] = threading.Event()
        discovery = world.started([], [L1])
        world.await_("ask", L1)
        world.pass_time(discovery, 6.0)
        world.until(lambda: f"{URL1} did not answer within 5 s" in discovery.health()[0])

    def test_a_failure_is_logged_once_and_so_is_its_end(
        self, world: World, log: Callable[[], list[str]]
    ) -> None:
        world.answers[L2] = ApiError("refused")
        discovery = world.started([A], [L2])
        for times in (1, 2, 3):
            world.await_("answer", L2, times=times)
            world.until(lambda: discovery.nsqlookupds[0].failed_at == world.now)
            if times == 3:
                world.answers[L2] = []
            world.pass_time(discovery, 60.0)
        world.until(lambda: not discovery.nsqlookupds[0].error)
        assert log() == [f"nsqlookupd {URL2} cannot be asked: refused", f"nsqlookupd {URL2} answers again"]

    def test_health_has_a_line_for_each_nsqlookupd_and_shows_no_secret(self, world: World) -> None:
        world.answers = {L1: [A], L2: ApiError("http://l2:4161/lookup: 500")}
        discovery = world.started([], [L1, L2])
        world.until(lambda: bool(discovery.wanted) and bool(discovery.nsqlookupds[1].error))
        world.now += 3.0
        assert discovery.health() == [
            f"nsqlookupd {URL1}: answered 3.0 s ago, listing 1",
            f"nsqlookupd {URL2}: failed 3.0 s ago: http://l2:4161/lookup: 500",
        ]
        assert "s3cret" not in repr(discovery.nsqlookupds)

    def test_the_users_functions_decide_what_is_dialed(self, world: World) -> None:
        world.answers[L1] = [A, B]
        own: list[bool] = []

        def accept(addresses: list[str]) -> list[str]:
            own.append(discovery.owner.is_current)
            assert addresses == [f"proxy.{A}", f"proxy.{B}"]
            return addresses[1:]

        discovery = world.discovery([], [L1], rewrite=lambda address: f"proxy.{address}", accept=accept)
        discovery.start()
        world.await_("found", f"proxy.{B}")
        assert own == [True]
        assert not discovery.owner.is_current


@pytest.mark.parametrize(
    ("nsqds", "rounds", "warned"),
    [
        pytest.param([], [([], [])], True, id="none lists any"),
        pytest.param([], [([], [])] * 3, True, id="only once"),
        pytest.param([], [([], [A])], False, id="one lists some"),
        pytest.param([], [([A], []), ([], [])], False, id="some were listed"),
        pytest.param([A], [([], [])], False, id="nsqds were named"),
        pytest.param([], [([], ApiError("refused"))], False, id="a failed one may know more"),
        pytest.param([], [([], ApiError("refused")), ([], [])], True, id="once all have answered"),
    ],
)
def test_an_unknown_topic_is_warned_about_once(
    world: World, log: Callable[[], list[str]], nsqds: list[str], rounds: list[Any], warned: bool
) -> None:
    discovery = world.discovery(nsqds, [L1, L2])
    for first, second in rounds:
        world.answers = {L1: first, L2: second}
        world.now += 60.0
        discovery.start()
        world.pass_time(discovery, 0.0)
        world.until(lambda: all(last_heard(each) == world.now for each in discovery.nsqlookupds))
    warnings = [line for line in log() if "topic" in line]
    assert len(warnings) == warned
    for words in (
        "'orders'",
        f"(asked: {URL1}, {URL2}; asked again in 2.0 s, then less often, at last every 60 s)",
        "publish to a topic",
        "misspelt",
    ) * warned:
        assert words in warnings[0]


class TestChanges:
    def test_nsqds_come_and_go(self, world: World) -> None:
        discovery = world.started([A])
        discovery.add_nsqd(B)
        discovery.add_nsqd(B)
        world.await_("found", A, B)
        discovery.remove_nsqd(A)
        world.await_("drop", A)
        assert world.notes[-2:] == [("found", B), ("drop", A)]

    def test_nsqlookupds_come_and_go(self, world: World) -> None:
        world.answers = {L1: [A], L2: [B]}
        discovery = world.started([], [L1])
        world.await_("found", A)
        discovery.add_nsqlookupd(L2)
        discovery.add_nsqlookupd(L2)
        world.await_("found", A, B)
        discovery.remove_nsqlookupd("http://l1:4161")  # the same one, spelt out
        world.pass_time(discovery, 60.0)
        world.await_("answer", L2, times=2)
        assert world.notes.count(("ask", L1)) == 1
        assert ("drop", A) not in world.notes

    @pytest.mark.parametrize("answer", [[B], ApiError("refused")])
    def test_the_answer_of_a_removed_nsqlookupd_changes_nothing(
        self, world: World, answer: Any, log: Callable[[], list[str]]
    ) -> None:
        world.gates[L1] = threading.Event()
        world.answers[L1] = answer
        discovery = world.started([A], [L1])
        world.await_("ask", L1)
        discovery.remove_nsqlookupd(L1)
        world.until(lambda: not discovery.nsqlookupds)
        world.gates[L1].set()
        world.await_("answer", L1)
        discovery.add_nsqd(C)
        world.await_("found", A, C)
        assert [each.address for each in discovery.wanted.values()] == [A, C]
        assert log() == []

    @pytest.mark.parametrize(
        ("method", "address", "error", "words"),
        [
            ("add_nsqd", "http://a:4150", ConfigError, "is a URL"),
            ("add_nsqd", "a", ConfigError, "is not host:port"),
            ("add_nsqd", 4150, ConfigError, "as text"),
            ("add_nsqlookupd", "ftp://l1", UsageError, "ftp"),
            ("remove_nsqd", B, UsageError, f"{B} was never added, or has been removed; there are: {A}"),
            ("remove_nsqlookupd", L1, UsageError, "there are: none"),
            ("remove_nsqd", A, UsageError, "the last address"),
        ],
    )
    def test_mistakes_change_nothing(
        self, world: World, method: str, address: Any, error: type[Exception], words: str
    ) -> None:
        discovery = world.discovery([A])
        with pytest.raises(error, match=words):
            getattr(discovery, method)(address)
        assert (list(discovery._nsqds), list(discovery._nsqlookupds)) == ([A], [])


class TestStopping:
    def test_nothing_is_asked_or_reported_after_a_stop(self, world: World) -> None:
        discovery = world.started([A], [L1])
        world.until(lambda: discovery.nsqlookupds[0].answered_at is not None)
        discovery.stop()
        discovery.ask_soon()
        discovery.add_nsqd(B)
        assert not discovery.join(time.monotonic() + PATIENCE)
        discovery.start()
        assert ("found", A, B) not in world.notes
        assert world.notes.count(("ask", L1)) == 1

    def test_join_names_a_question_that_is_still_under_way(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.gates[L1] = threading.Event()
        monkeypatch.setattr(world, "cancel", lambda: None)
        discovery = world.started([], [L1])
        world.await_("ask", L1)
        discovery.stop()
        assert discovery.join(time.monotonic() + 0.01) == [f"{NAME}-ask-{URL1}"]
        world.gates[L1].set()
        assert not discovery.join(time.monotonic() + PATIENCE)

    def test_a_discovery_that_was_never_started_has_nothing_to_end(self, world: World) -> None:
        discovery = world.discovery([A], [L1])
        discovery.stop()
        assert not discovery.join(time.monotonic())
        discovery.start()
        assert discovery.threads == ()

    def test_a_forked_child_cancels_nothing(self, world: World) -> None:
        world.discovery([A], [L1]).abandon()
        assert world.notes == [("abandon",)]


class OfPartitions(Asker):
    """Asks the nsqlookupds of a partitioned NSQ, and wants one of two nsqds."""

    def __init__(self, world: World) -> None:
        super().__init__(None, Config())
        self._world = world

    def ask(self, lookupd: str) -> frozenset[str]:
        self._world.note("ask for leaders", lookupd)
        return frozenset([B, C])

    def wanted(self, named: dict[Key, Wanted]) -> dict[Key, Wanted]:
        return {key: each for key, each in named.items() if each.given or each.address == C}


class TestKinds:
    """Which NSQ the nsqlookupds belong to."""

    def started(
        self, world: World, nsqds: Iterable[str], lookupds: Iterable[str], **options: Any
    ) -> Discovery:
        def other(discovery: Discovery) -> Asker:
            world.note("partitioned")
            return OfPartitions(world)

        original = partial(world.note, "original")
        return world.started(nsqds, lookupds, original=original, other=other, **options)

    def test_the_original_is_told_once(self, world: World) -> None:
        world.answers[L1] = world.answers[L2] = [A]
        discovery = self.started(world, [], [L1, L2])
        assert discovery.kind in (None, "original")
        world.until(
            lambda: len(discovery.nsqlookupds) == 2 and None not in map(last_heard, discovery.nsqlookupds)
        )
        assert world.notes.count(("original",)) == 1
        assert discovery.kind == "original"
        assert ("partitioned",) not in world.notes

    @pytest.mark.parametrize("before", [None, [A]], ids=["at once", "after a time as an original"])
    def test_a_partitioned_one_is_asked_at_once_in_its_own_way(
        self, world: World, before: list[str] | None
    ) -> None:
        world.answers[L1] = PARTITIONED if before is None else before
        discovery = self.started(world, [A], [L1])
        if before is not None:
            world.await_("original")
            world.answers[L1] = PARTITIONED
            world.pass_time(discovery, 60.0)
        world.await_("found", A, C)
        assert discovery.kind == "partitioned"
        world.pass_time(discovery, 60.0)
        world.await_("ask for leaders", L1, times=2)
        assert world.notes.count(("partitioned",)) == 1

    def test_all_are_asked_again_as_soon_as_one_is_partitioned(self, world: World) -> None:
        world.gates[L2] = threading.Event()
        world.answers[L1] = world.answers[L2] = PARTITIONED
        self.started(world, [], [L1, L2])
        world.await_("ask for leaders", L1)
        world.gates[L2].set()
        world.await_("ask for leaders", L2)
        assert world.notes.count(("partitioned",)) == 1

    def test_one_that_the_user_calls_partitioned_is_not_asked_what_it_is(self, world: World) -> None:
        discovery = self.started(world, [], [L1], cluster="partitioned")
        world.await_("ask for leaders", L1)
        assert ("ask", L1) not in world.notes
        assert discovery.kind == "partitioned"

    def test_a_stop_ends_the_questions_of_both_kinds(self, world: World) -> None:
        world.answers[L1] = PARTITIONED
        discovery = self.started(world, [], [L1])
        world.await_("ask for leaders", L1)
        discovery.stop()
        world.await_("cancel")


class TestProducers:
    """Without a subscription all nsqds are wanted."""

    def test_absence_says_why_no_nsqd_is_known(self, world: World, log: Callable[[], list[str]]) -> None:
        discovery = world.discovery([], [L2], subscription=None)
        assert discovery.absence == "none is discovered yet"
        world.answers[L2] = ApiError("http://l2:4161/nodes cannot be reached")
        discovery.start()
        world.until(lambda: bool(log()))
        assert discovery.absence == "http://l2:4161/nodes cannot be reached"
        assert log() == [f"nsqlookupd {URL2} cannot be asked: http://l2:4161/nodes cannot be reached"]
        world.answers[L2] = []
        world.pass_time(discovery, 60.0)
        world.until(lambda: discovery.absence == f"nsqlookupd {URL2} lists none")

    def test_a_start_that_finds_no_thread_can_be_repeated(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.answers[L1] = [A]
        discovery = world.discovery([], [L1])

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                discovery.start()
        assert discovery.threads == ()
        discovery.start()
        discovery.start()
        world.await_("found", A)
        assert [thread.name for thread in discovery.threads].count(f"{NAME}-lookupd") == 1


# The user's rewrite and accept.

LISTED = frozenset(["a:1", "b:2"])


def broken(_: object) -> Any:
    raise RuntimeError("my fault")


@pytest.mark.parametrize("rewrite", [broken, lambda address: None], ids=["raises", "returns None"])
def test_an_address_whose_rewriting_fails_is_used_as_it_was(
    world: World, rewrite: Callable[[str], Any], log: Callable[[], list[str]]
) -> None:
    subject = world.discovery([A], rewrite=lambda each: rewrite(each) if each == "a:1" else "c:3")
    assert subject._accepted(LISTED) == frozenset(["a:1", "c:3"])
    assert log() == ["rewrite_address('a:1') failed; the address is used as it is"]


@pytest.mark.parametrize("fails", [broken, lambda each: None, lambda each: "a:1", lambda each: [1]])
def test_when_accepting_fails_the_answer_is_unknown_and_that_is_logged_once_until_it_is_over(
    world: World, fails: Callable[[list[str]], Any], log: Callable[[], list[str]]
) -> None:
    turns = [fails, fails, list, fails]
    subject = world.discovery([A], accept=lambda each: turns.pop(0)(each))
    assert [subject._accepted(LISTED) for _ in range(4)] == [None, None, LISTED, None]
    assert log() == ["accept_addresses failed; its addresses are left out"] * 2
