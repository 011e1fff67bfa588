"""The discovery thread with a host, nsqlookupds and a clock that the tests hold in their hands."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from nsq.config import Config
from nsq.consumer.directory import State
from nsq.consumer.discovery import Discovery
from nsq.errors import ApiError, ConfigError, ConnectionLost, DialFailed, UsageError

A, B, C = "a:4150", "b:4150", "c:4150"
L1, L2 = "l1:4161", "http://l2:4161/?token=s3cret"
PATIENCE = 20.0

Answer = frozenset[str] | Exception


class Ledger:
    """Notes in the order in which they were made; whoever waits for one is woken."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.notes: list[tuple[object, ...]] = []

    def note(self, *note: object) -> None:
        with self._changed:
            self.notes.append(note)
            self._changed.notify_all()

    def await_(self, *note: object, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.notes.count(note) >= times, PATIENCE), self.notes

    def count(self, *note: object) -> int:
        with self._changed:
            return self.notes.count(note)


class FakeHost:
    """Dials as it is told: an address without an entry is connected to at once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.faults: dict[str, Exception] = {}
        self.gates: dict[str, threading.Event] = {}
        self.threads: dict[str, str] = {}

    def dial(self, address: str) -> None:
        self.threads[address] = threading.current_thread().name
        self._ledger.note("dial", address)
        if address in self.gates:
            assert self.gates[address].wait(PATIENCE)
        if address in self.faults:
            raise self.faults[address]

    def drop(self, address: str) -> None:
        self._ledger.note("drop", address)

    def expect(self, connections: int) -> None:
        self._ledger.note("expect", connections)


class FakeAsker:
    """Answers as it is told; an nsqlookupd with a gate answers when that opens, or when cancelled."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.answers: dict[str, Answer] = {}
        self.gates: dict[str, threading.Event] = {}
        self.threads: dict[str, str] = {}

    def ask(self, lookupd: str) -> frozenset[str]:
        self.threads[lookupd] = threading.current_thread().name
        self._ledger.note("ask", lookupd)
        if lookupd in self.gates:
            assert self.gates[lookupd].wait(PATIENCE)
        answer = self.answers.get(lookupd, frozenset())
        self._ledger.note("answer", lookupd)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def abandon(self) -> None: ...

    def cancel(self) -> None:
        for gate in self.gates.values():
            gate.set()


class World:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.host = FakeHost(self.ledger)
        self.asker = FakeAsker(self.ledger)
        self.now = 1000.0
        self.chance = 0.0  # no pause after a setback
        self._made: list[Discovery] = []
        self._looked = threading.Condition()  # told whenever the clock is looked at

    def discovery(
        self, nsqds: list[str] | None = None, lookupds: list[str] | None = None, **options: Any
    ) -> Discovery:
        hooks = {name: options.pop(name) for name in ("rewrite", "accept") if name in options}
        settings = {"lookupd_poll_jitter": 0.0, **options}
        made = Discovery(
            "orders",
            Config(**settings),
            self.host,
            name="nsq-orders/billing",
            nsqds=nsqds or [],
            nsqlookupds=lookupds or [],
            asker=self.asker,
            clock=self.clock,
            chance=lambda: self.chance,
            **hooks,
        )
        self._made.append(made)
        return made

    def started(
        self, nsqds: list[str] | None = None, lookupds: list[str] | None = None, **options: Any
    ) -> Discovery:
        made = self.discovery(nsqds, lookupds, **options)
        made.start()
        return made

    def clock(self) -> float:
        with self._looked:
            self._looked.notify_all()
            return self.now

    def until(self, condition: Callable[[], bool]) -> None:
        """For what is only there to be read: the thread looks at the clock whenever it has published it."""
        with self._looked:
            assert self._looked.wait_for(condition, PATIENCE)

    def pass_time(self, discovery: Discovery, seconds: float) -> None:
        """Any event makes the thread look at the clock; this one means nothing to it."""
        self.now += seconds
        discovery.lost("nobody:1", 0.0, None)

    @contextmanager
    def at_once(self, discovery: Discovery) -> Iterator[None]:
        """What it is told meanwhile it takes in together."""
        gate = threading.Event()
        discovery._events.put(partial(gate.wait, PATIENCE))  # type: ignore[arg-type]
        yield
        gate.set()

    def close(self) -> None:
        for gate in [*self.host.gates.values(), *self.asker.gates.values()]:
            gate.set()
        for made in self._made:
            made.stop()
            assert made.join(time.monotonic() + PATIENCE)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def state_of(discovery: Discovery, address: str) -> State | None:
    return next((nsqd.state for nsqd in discovery.state().nsqds if nsqd.address == address), None)


class TestDialling:
    def test_every_direct_nsqd_is_dialled_in_a_thread_of_its_own(self, world: World) -> None:
        world.host.gates = {A: threading.Event(), B: threading.Event()}
        world.started([A, B])
        world.ledger.await_("dial", A)
        world.ledger.await_("dial", B)
        assert world.host.threads == {A: f"nsq-orders/billing-dial-{A}", B: f"nsq-orders/billing-dial-{B}"}

    def test_the_host_expects_them_before_the_first_is_dialled(self, world: World) -> None:
        world.started([A, B, C])
        world.ledger.await_("dial", C)
        assert world.ledger.notes[0] == ("expect", 3)

    def test_a_failed_one_is_dialled_again_and_its_failure_logged_once(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.host.faults[A] = DialFailed("connection refused")
        with caplog.at_level(logging.INFO, "nsq.consumer"):
            world.started([A])
            world.ledger.await_("dial", A, times=20)
        assert [record.getMessage() for record in caplog.records] == [
            f"no connection to an nsqd, trying again: {A}: connection refused"
        ]

    def test_a_fault_that_is_no_error_of_ours_is_logged_and_does_not_end_it(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.host.faults[A] = ZeroDivisionError("oops")
        world.chance = 1.0
        discovery = world.started([A])
        world.until(lambda: "ZeroDivisionError" in " ".join(discovery.health()))
        assert "failed by a fault of ours" in caplog.text
        world.pass_time(discovery, 10.0)
        world.ledger.await_("dial", A, times=2)

    def test_a_lost_connection_is_dialled_again_after_its_pause(self, world: World) -> None:
        world.chance = 1.0
        discovery = world.started([A])
        world.until(lambda: state_of(discovery, A) is State.CONNECTED)
        discovery.lost(A, 100.0, ConnectionLost("gone"))
        world.until(lambda: state_of(discovery, A) is State.WAITING)
        assert discovery.health() == [f"nsqd {A} (given): next dial in 0.2 s; last error: {A}: gone"]
        world.pass_time(discovery, 0.24)
        world.pass_time(discovery, 0.02)
        world.ledger.await_("dial", A, times=2)

    def test_a_connection_lost_before_its_dial_has_returned(self, world: World) -> None:
        world.host.gates[A] = threading.Event()
        discovery = world.started([A])
        world.ledger.await_("dial", A)
        discovery.lost(A, 0.0, ConnectionLost("gone"))
        world.host.gates.pop(A).set()
        world.ledger.await_("dial", A, times=2)

    def test_what_the_host_raises_does_not_end_it(
        self, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(connections: int) -> None:
            raise RuntimeError("oops")

        monkeypatch.setattr(world.host, "expect", broken)
        world.started([A])
        world.ledger.await_("dial", A)
        assert "announcing connections failed" in caplog.text


class TestAsking:
    def test_all_are_asked_at_once_each_in_a_thread_of_its_own(self, world: World) -> None:
        world.asker.gates = {L1: threading.Event(), L2: threading.Event()}
        world.started([], [L1, L2])
        world.ledger.await_("ask", L1)
        world.ledger.await_("ask", L2)
        assert world.asker.threads == {
            L1: "nsq-orders/billing-ask-http://l1:4161/",
            L2: "nsq-orders/billing-ask-http://l2:4161/",
        }

    def test_what_one_lists_is_dialled_while_another_is_silent(self, world: World) -> None:
        world.asker.gates[L2] = threading.Event()
        world.asker.answers = {L1: frozenset([A]), L2: frozenset([A, B])}
        world.started([], [L1, L2])
        world.ledger.await_("dial", A)
        assert world.ledger.count("answer", L2) == 0
        world.asker.gates[L2].set()
        world.ledger.await_("dial", B)
        assert world.ledger.count("dial", A) == 1

    def test_an_interval_later_they_are_asked_again(self, world: World) -> None:
        discovery = world.started([], [L1])
        world.ledger.await_("answer", L1)
        world.until(lambda: discovery.state().nsqlookupds[0].answered_at == world.now)
        world.pass_time(discovery, 59.0)
        assert world.ledger.count("ask", L1) == 1
        world.asker.answers[L1] = frozenset([A])
        world.pass_time(discovery, 1.0)
        world.ledger.await_("dial", A)

    def test_lost_connections_have_them_asked_once_for_all(self, world: World) -> None:
        world.asker.answers[L1] = frozenset([A, B])
        discovery = world.started([], [L1])
        world.until(lambda: {state_of(discovery, each) for each in (A, B)} == {State.CONNECTED})
        world.now += 1.0
        world.chance = 1.0
        with world.at_once(discovery):
            discovery.lost(A, 1.0, ConnectionLost("gone"))
            discovery.lost(B, 1.0, ConnectionLost("gone"))
        world.ledger.await_("answer", L1, times=2)
        world.pass_time(discovery, 1.0)
        world.ledger.await_("dial", A, times=2)
        world.ledger.await_("dial", B, times=2)
        assert world.ledger.count("ask", L1) == 2

    def test_without_an_answer_the_round_ends_in_time(self, world: World) -> None:
        world.asker.gates[L1] = threading.Event()
        discovery = world.started([], [L1])
        world.ledger.await_("ask", L1)
        world.pass_time(discovery, 6.0)
        world.until(lambda: "did not answer within 5 s" in discovery.health()[0])

    def test_a_failure_is_logged_once_and_so_is_its_end(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.asker.answers[L2] = ApiError("http://l2:4161/lookup cannot be reached: refused")
        with caplog.at_level(logging.INFO, "nsq.consumer"):
            discovery = world.started([], [L2])
            for times in (1, 2, 3):
                world.ledger.await_("answer", L2, times=times)
                world.until(lambda: discovery.state().nsqlookupds[0].failed_at == world.now)
                world.pass_time(discovery, 60.0)
            world.ledger.await_("answer", L2, times=4)
            world.asker.answers[L2] = frozenset()
            world.until(lambda: discovery.state().nsqlookupds[0].failed_at == world.now)
            world.pass_time(discovery, 60.0)
            world.until(lambda: not discovery.state().nsqlookupds[0].error)
        assert [record.getMessage() for record in caplog.records] == [
            "nsqlookupd http://l2:4161/ fails, others are asked all the same: "
            "http://l2:4161/lookup cannot be reached: refused",
            "nsqlookupd http://l2:4161/ answers again",
        ]

    def test_health_tells_of_every_nsqlookupd_but_no_secret(self, world: World) -> None:
        world.asker.answers = {L1: frozenset([A]), L2: ApiError("http://l2:4161/lookup: 500")}
        discovery = world.started([], [L1, L2])
        world.until(lambda: state_of(discovery, A) is State.CONNECTED)
        world.until(lambda: bool(discovery.state().nsqlookupds[1].error))
        world.now += 3.0
        assert discovery.health() == [
            "nsqlookupd http://l1:4161/: answered 3.0 s ago, listing 1",
            "nsqlookupd http://l2:4161/: failed 3.0 s ago: http://l2:4161/lookup: 500",
            f"nsqd {A} (listed): connected",
        ]
        assert "s3cret" not in repr(discovery.state())

    def test_hooks_decide_what_is_dialled(self, world: World) -> None:
        world.asker.answers[L1] = frozenset([A, B])
        world.started(
            [], [L1], rewrite=lambda address: f"proxy.{address}", accept=lambda addresses: addresses[1:]
        )
        world.ledger.await_("dial", f"proxy.{B}")
        assert world.ledger.count("dial", f"proxy.{A}") == 0

    def test_an_nsqd_that_is_listed_no_more_is_pruned(self, world: World) -> None:
        world.asker.answers[L1] = frozenset([A])
        discovery = world.started([], [L1], prune=True)
        world.until(lambda: state_of(discovery, A) is State.CONNECTED)
        world.asker.answers[L1] = frozenset()
        for _ in range(3):
            assert world.ledger.count("drop", A) == 0
            world.pass_time(discovery, 60.0)
            world.until(lambda: discovery.state().nsqlookupds[0].answered_at == world.now)
        world.ledger.await_("drop", A)


def thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


class TestChanges:
    def test_an_nsqd_that_is_added_is_dialled(self, world: World) -> None:
        discovery = world.started([A])
        discovery.add_nsqd(B)
        world.ledger.await_("dial", B)

    def test_one_that_is_removed_is_dropped(self, world: World) -> None:
        discovery = world.started([A, B])
        world.until(lambda: {state_of(discovery, each) for each in (A, B)} == {State.CONNECTED})
        discovery.remove_nsqd(A)
        world.ledger.await_("drop", A)
        world.ledger.await_("expect", 1)
        discovery.lost(A, 1.0, None)
        world.until(lambda: state_of(discovery, A) is None)

    def test_an_nsqlookupd_that_is_added_is_asked_at_once(self, world: World) -> None:
        world.asker.answers[L1] = frozenset([B])
        discovery = world.started([A])
        discovery.add_nsqlookupd(L1)
        world.ledger.await_("dial", B)

    def test_one_that_is_removed_is_not_asked_again(self, world: World) -> None:
        world.asker.answers = {L1: frozenset([A]), L2: frozenset([B])}
        discovery = world.started([], [L1, L2])
        world.until(lambda: {state_of(discovery, each) for each in (A, B)} == {State.CONNECTED})
        discovery.remove_nsqlookupd("http://l1:4161")  # the same one, spelt out
        world.pass_time(discovery, 60.0)
        world.ledger.await_("answer", L2, times=2)
        assert world.ledger.count("ask", L1) == 1
        assert world.ledger.count("drop", A) == 0

    def test_what_it_answers_afterwards_counts_for_nothing(self, world: World) -> None:
        world.asker.gates[L1] = threading.Event()
        world.asker.answers[L1] = frozenset([B])
        discovery = world.started([A], [L1])
        world.ledger.await_("ask", L1)
        discovery.remove_nsqlookupd(L1)
        world.until(lambda: not discovery.state().nsqlookupds)
        world.asker.gates[L1].set()
        world.ledger.await_("answer", L1)
        world.pass_time(discovery, 1.0)
        world.until(lambda: state_of(discovery, A) is State.CONNECTED)
        discovery.add_nsqd(C)
        world.ledger.await_("dial", C)
        assert world.ledger.count("dial", B) == 0
        assert discovery.state().nsqlookupds == ()

    def test_without_any_left_what_they_listed_is_not_dialled_again(self, world: World) -> None:
        world.asker.answers[L1] = frozenset([B])
        discovery = world.started([A], [L1])
        world.until(lambda: {state_of(discovery, each) for each in (A, B)} == {State.CONNECTED})
        discovery.remove_nsqlookupd(L1)
        discovery.lost(B, 100.0, ConnectionLost("gone"))
        world.until(lambda: state_of(discovery, B) is None)
        assert world.ledger.count("dial", B) == 1

    def test_the_last_address_cannot_be_removed(self, world: World) -> None:
        discovery = world.discovery([A], [L1])
        discovery.remove_nsqlookupd(L1)
        with pytest.raises(UsageError, match=f"nsqd {A} is the last address"):
            discovery.remove_nsqd(A)
        discovery.add_nsqlookupd(L2)
        discovery.remove_nsqd(A)
        with pytest.raises(UsageError, match="http://l2:4161/ is the last address") as refused:
            discovery.remove_nsqlookupd(L2)
        assert "s3cret" not in str(refused.value)

    def test_nor_one_that_is_not_there(self, world: World) -> None:
        discovery = world.discovery([A, B], [L1])
        with pytest.raises(UsageError, match=r"nsqd c:4150 was never added.*a:4150, b:4150"):
            discovery.remove_nsqd(C)
        with pytest.raises(UsageError, match=r"http://l2:4161/ was never added.*http://l1:4161/"):
            discovery.remove_nsqlookupd(L2)

    @pytest.mark.parametrize("address", ["", "a", "a:b", "a:0", ":4150"])
    def test_what_is_no_address_is_refused(self, world: World, address: str) -> None:
        with pytest.raises(ConfigError):
            world.discovery([address])
        with pytest.raises(ConfigError):
            world.discovery([A]).add_nsqd(address)


class TestEnd:
    def test_nothing_is_dialled_after_stop(self, world: World) -> None:
        discovery = world.started([A])
        world.until(lambda: state_of(discovery, A) is State.CONNECTED)
        discovery.stop()
        discovery.stop()
        discovery.lost(A, 1.0, ConnectionLost("gone"))
        discovery.add_nsqd(B)
        assert discovery.join(time.monotonic() + PATIENCE)
        assert world.ledger.count("dial", A) == 1
        assert world.ledger.count("dial", B) == 0

    def test_questions_under_way_are_cut_short(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        world.asker.gates[L1] = threading.Event()
        world.asker.answers[L1] = ApiError("interrupted")
        discovery = world.started([], [L1])
        world.ledger.await_("ask", L1)
        discovery.stop()
        assert discovery.join(time.monotonic() + PATIENCE)
        assert not caplog.records

    def test_join_says_when_a_dial_is_still_under_way(self, world: World) -> None:
        world.host.gates[A] = threading.Event()
        discovery = world.started([A])
        world.ledger.await_("dial", A)
        discovery.stop()
        assert not discovery.join(time.monotonic() + 0.01)
        world.host.gates[A].set()
        assert discovery.join(time.monotonic() + PATIENCE)

    def test_one_that_was_never_started_has_nothing_to_end(self, world: World) -> None:
        discovery = world.discovery([A], [L1])
        discovery.stop()
        assert discovery.join(time.monotonic())

    def test_one_that_is_stopped_first_does_nothing_when_started(self, world: World) -> None:
        discovery = world.discovery([A], [L1])
        discovery.stop()
        discovery.start()
        assert discovery.join(time.monotonic() + PATIENCE)
        assert world.ledger.notes == []

    def test_its_thread_is_named_after_its_job(self, world: World) -> None:
        world.started([A])
        world.ledger.await_("dial", A)
        assert "nsq-orders/billing-lookupd" in thread_names()
