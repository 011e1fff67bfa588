from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from nsq.config import Config
from nsq.errors import ApiError, UsageError
from nsq.producer.discovery import Discovery

PATIENCE = 20.0


class Addresses:
    """Notes what is set, and lets a test wait for it."""

    def __init__(self) -> None:
        self.absence = ""
        self.seen: list[set[str]] = []
        self._changed = threading.Condition()

    def set_addresses(self, addresses: Iterable[str]) -> None:
        with self._changed:
            self.seen.append(set(addresses))
            self._changed.notify_all()

    def wait_for(self, addresses: set[str]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: addresses in self.seen, PATIENCE), self.seen


def joined(discovery: Discovery) -> bool:
    """Whether its threads have ended."""
    for thread in discovery.threads:
        thread.join(PATIENCE)
    return not any(thread.is_alive() for thread in discovery.threads)


def test_answers_of_all_are_merged_with_the_fixed_ones() -> None:
    found = {"one:4161": ["a:4150", "b:4150"], "two:4161": ["b:4150", "c:4150"]}
    pool = Addresses()
    discovery = Discovery(found, Config(), pool, fixed=["f:4150"], nodes=lambda lookupd: found[lookupd])

    assert discovery.ask("one:4161")
    assert discovery.ask("two:4161")

    assert pool.seen == [{"a:4150", "b:4150", "f:4150"}, {"a:4150", "b:4150", "c:4150", "f:4150"}]


def test_an_nsqd_that_is_listed_no_more_goes_unless_another_nsqlookupd_lists_it() -> None:
    found = {"one:4161": ["a:4150", "b:4150"], "two:4161": ["b:4150"]}
    pool = Addresses()
    discovery = Discovery(found, Config(), pool, nodes=lambda lookupd: found[lookupd])
    discovery.ask("one:4161")
    discovery.ask("two:4161")
    found["one:4161"] = []

    discovery.ask("one:4161")

    assert pool.seen[-1] == {"b:4150"}
    assert "one:4161 lists none" in pool.absence


def test_one_that_cannot_be_asked_removes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def nodes(lookupd: str) -> list[str]:
        raise ApiError(f"http://{lookupd} cannot be reached")

    pool = Addresses()

    assert not Discovery(["one:4161"], Config(), pool, nodes=nodes).ask("one:4161")

    assert pool.seen == []
    assert pool.absence == "http://one:4161 cannot be reached"
    assert "one:4161" in caplog.text


def test_each_is_asked_on_a_thread_of_its_own_again_and_again() -> None:
    hanging = threading.Event()
    answers = iter([["a:4150"], ["a:4150", "b:4150"]])

    def nodes(lookupd: str) -> list[str]:
        if lookupd == "black-hole:4161":
            hanging.wait(PATIENCE)
            return []
        return next(answers, [])

    pool = Addresses()
    config = Config(lookupd_poll_interval=0.01)
    discovery = Discovery(["black-hole:4161", "one:4161"], config, pool, nodes=nodes)
    discovery.start()
    discovery.start()
    assert discovery.asks
    assert [thread.name for thread in discovery.threads] == [
        "nsq-producer-lookupd-black-hole:4161",
        "nsq-producer-lookupd-one:4161",
    ]
    pool.wait_for({"a:4150"})
    pool.wait_for({"a:4150", "b:4150"})
    pool.wait_for(set())
    hanging.set()
    discovery.stop()
    assert joined(discovery)


def test_a_stop_ends_the_pause_until_the_next_question_and_asks_no_more() -> None:
    asked: list[str] = []

    def nodes(lookupd: str) -> list[str]:
        asked.append(lookupd)
        return ["a:4150"]

    pool = Addresses()
    discovery = Discovery(["one:4161"], Config(lookupd_poll_interval=300.0), pool, nodes=nodes)
    discovery.start()
    pool.wait_for({"a:4150"})
    discovery.stop()
    discovery.stop()
    assert joined(discovery)
    discovery.start()
    assert len(discovery.threads) == 1
    assert asked == ["one:4161"]


def test_a_stop_does_not_wait_and_a_failure_behind_it_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked, stopped = threading.Event(), threading.Event()

    def nodes(lookupd: str) -> list[str]:
        asked.set()
        stopped.wait(PATIENCE)
        raise ApiError("the request was interrupted")

    pool = Addresses()
    discovery = Discovery(["one:4161"], Config(), pool, nodes=nodes)
    discovery.start()
    assert asked.wait(PATIENCE)
    discovery.stop()
    stopped.set()
    assert joined(discovery)
    assert pool.absence == ""
    assert caplog.text == ""


def test_a_start_that_finds_no_thread_goes_on_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Addresses()
    discovery = Discovery(["one:4161", "two:4161"], Config(), pool, nodes=lambda lookupd: [lookupd])
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "nsq-producer-lookupd-two:4161":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            discovery.start()
    assert len(discovery.threads) == 1
    discovery.start()
    pool.wait_for({"one:4161", "two:4161"})
    discovery.stop()
    assert joined(discovery)
    assert len(discovery.threads) == 2


def test_a_bug_of_ours_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([RuntimeError("can't start new thread"), ["a:4150"]])

    def nodes(lookupd: str) -> list[str]:
        answer = next(answers, [])
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    pool = Addresses()
    discovery = Discovery(["one:4161"], Config(reconnect_initial=0.01), pool, nodes=nodes)
    discovery.start()
    pool.wait_for({"a:4150"})
    discovery.stop()
    assert joined(discovery)
    assert "a bug of ours" in caplog.text


def test_without_any_there_is_nothing_to_do() -> None:
    discovery = Discovery([], Config(), Addresses())
    discovery.start()
    discovery.stop()
    assert not discovery.asks
    assert discovery.threads == []


def test_a_wrong_address_is_told_at_once() -> None:
    with pytest.raises(UsageError):
        Discovery(["ftp://one:4161"], Config(), Addresses())
