"""The whole producer, threads and all, against nsqds in memory whose answers the test gives."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import math
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import nsq
from nsq import aio
from nsq.producer.producer import Producer
from nsq.producer.publishes import PublishOptions
from nsq.producer.reports import Acknowledged, CloseReport, Failed
from nsq.transport import MemoryTransport
from nsq.wire import commands
from nsq.wire.frames import PUBLISHED
from tests.fakes.nsqd import A, B, PublishedTo, accept_publisher
from tests.fakes.threads import PATIENCE, in_thread

from .running import connected, eventually, producer, publishing

# Publishing


def test_publish_returns_when_nsqd_has_said_ok(transport: MemoryTransport) -> None:
    with producer(transport) as p:
        nsqd = connected(p, transport)
        for body in (b"1", b"2", b"3"):
            published = publishing(p, body)
            nsqd.expect(body)
            nsqd.heartbeat()
            assert not published.done()
            nsqd.ok()
            assert published.result(PATIENCE) is PUBLISHED
    nsqd.peer.wait_closed()
    assert transport.dials == [A]


def test_deferred_publishes_and_batches_send_dpub_and_mpub(p: Producer, nsqd: PublishedTo) -> None:
    deferred = publishing(p, b"later", defer=30.0)
    nsqd.peer.expect(commands.dpub("orders", 30_000, b"later"))
    batch = in_thread(lambda: p.multi_publish("orders", [b"one", b"two"]))
    nsqd.peer.expect(commands.mpub("orders", [b"one", b"two"]))
    future = p.multi_publish_async("orders", [b"three", b"four"])
    nsqd.peer.expect(commands.mpub("orders", [b"three", b"four"]))
    for published in (deferred, batch, future):
        assert not published.done()
        nsqd.ok()
        assert published.result(PATIENCE) is PUBLISHED
    assert p.stats().published == 6


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda p: p.publish("no spaces", b"body"), nsq.InvalidName),
        (lambda p: p.publish("orders", "text"), nsq.InvalidMessage),
        (lambda p: p.publish("orders", b"body", defer=4000.0), nsq.InvalidMessage),
        *[
            (lambda p, timeout=timeout: p.publish("orders", b"body", timeout=timeout), nsq.UsageError)
            for timeout in (0, -1, math.inf, math.nan, "5", True)
        ],
        (lambda p: p.publish_async("orders", b""), nsq.InvalidMessage),
        (lambda p: p.multi_publish_async("orders", []), nsq.UsageError),
        (lambda p: p.multi_publish("orders", []), nsq.UsageError),
        (lambda p: p.flush(-1.0), nsq.UsageError),
        (lambda p: p.set_nsqds([]), nsq.UsageError),
        (lambda _: Producer(nsqlookupd="127.0.0.1:4161", cluster="original").set_nsqds([A]), nsq.UsageError),
    ],
)
def test_a_callers_mistake_is_raised_before_anything_is_dialed(
    p: Producer, transport: MemoryTransport, call: Any, error: type[nsq.NsqError]
) -> None:
    with pytest.raises(error):
        call(p)
    assert transport.dials == []


@pytest.mark.parametrize(
    ("addresses", "options", "error"),
    [
        ((), {}, nsq.UsageError),
        (("nsqd-a",), {}, nsq.ConfigError),
        ((4150,), {}, nsq.UsageError),
        ((A,), {"nsqlookupd": 4161}, nsq.UsageError),
        ((A,), {"nsqd": [4150]}, nsq.UsageError),
        ((A,), {"on_failed": "print"}, nsq.UsageError),
        ((A,), {"around_publish": 1}, nsq.UsageError),
        ((A,), {"max_pendign": 3}, nsq.ConfigError),
        ((A,), {"config": "fast"}, nsq.ConfigError),
    ],
)
def test_arguments_are_checked(addresses: Any, options: Any, error: type[nsq.NsqError]) -> None:
    with pytest.raises(error):
        Producer(*addresses, **options)


# Futures


def test_callbacks_run_on_a_thread_of_their_own_and_may_publish_but_not_wait(
    p: Producer, nsqd: PublishedTo
) -> None:
    texts: Future[list[str]] = Future()

    def callback(_: Future[None]) -> None:
        said = [threading.current_thread().name]
        for call in (p.flush, p.close):
            with pytest.raises(nsq.UsageError) as caught:
                call()
            said.append(str(caught.value))
        p.publish("orders", b"second")
        texts.set_result(said)

    future = p.publish_async("orders", b"body")
    future.add_done_callback(callback)
    nsqd.answer(b"body")
    nsqd.answer(b"second")
    thread, *said = texts.result(PATIENCE)
    assert thread == "nsq-producer-callbacks"
    assert ["another thread" in text for text in said] == [True, True]


# Event loops


async def publish_on_the_loop(p: Producer, **options: Any) -> None:
    p.publish("orders", b"body", **options)


@pytest.mark.parametrize("connected_before", [False, True])
def test_only_publishes_that_wait_for_an_nsqd_on_an_event_loops_thread_are_warned_about_and_once(
    transport: MemoryTransport, caplog: pytest.LogCaptureFixture, connected_before: bool
) -> None:
    with producer(transport) as p:
        p.publish_async("orders", b"first")
        with pytest.raises(nsq.PublishFailed):
            p.publish("orders", b"not on the thread of a loop", timeout=0.01)
        if connected_before:
            nsqd = accept_publisher(transport)
            nsqd.answer(b"first")
            eventually(lambda: "connected to 1" in repr(p))
            answered = in_thread(lambda: nsqd.answer(b"body"))
            asyncio.run(publish_on_the_loop(p))
            answered.result(PATIENCE)
        else:
            for _ in range(2):
                with pytest.raises(nsq.PublishFailed):
                    asyncio.run(publish_on_the_loop(p, timeout=0.01))
        p.close(0)
    warnings = [each.getMessage() for each in caplog.records if "event loop" in each.getMessage()]
    assert ["nsq.aio.Producer" in each for each in warnings] == [True] * (not connected_before)


# Reports


def test_hooks_are_called_on_the_callbacks_thread(transport: MemoryTransport) -> None:
    events: list[Any] = []

    def tell(each: Acknowledged | Failed) -> None:
        events.extend((each, threading.current_thread().name))

    with producer(transport, on_acknowledged=tell, on_failed=tell) as p:
        future = p.multi_publish_async("orders", [b"one", b"three"])
        nsqd = accept_publisher(transport)
        nsqd.peer.expect(commands.mpub("orders", [b"one", b"three"]))
        nsqd.ok()
        future.result(PATIENCE)
        refused = publishing(p, b"bad")
        nsqd.expect(b"bad")
        nsqd.refuse("E_BAD_MESSAGE")
        error = refused.exception(PATIENCE)
    stored, thread, bad, _ = events
    assert stored == Acknowledged("orders", 2, 8, A, stored.latency)
    assert 0 < stored.latency < PATIENCE
    assert bad == Failed("orders", 1, 3, error, bad.latency)
    assert thread == "nsq-producer-callbacks"


class Around:
    """Replaces each body, and records what each call ended with."""

    def __init__(self, *added: dict[str, str]) -> None:
        self.ends: list[BaseException | None] = []
        self._added = added

    def __call__(self, topic: str, bodies: list[bytes]) -> Any:
        return [b"new " + body for body in bodies if body != b"dropped"], self.ends.append, *self._added


def test_around_publish_replaces_bodies_and_is_called_at_the_end(transport: MemoryTransport) -> None:
    hook = Around()
    with producer(transport, around_publish=hook) as p:
        future = p.publish_async("orders", b"1")
        nsqd = accept_publisher(transport)
        nsqd.answer(b"new 1")
        future.result(PATIENCE)
        calls = {
            commands.pub("orders", b"new 2"): lambda: p.publish("orders", b"2"),
            commands.mpub("orders", [b"new 3"]): lambda: p.multi_publish("orders", iter([b"3"])),
        }
        for command, call in calls.items():
            published = in_thread(call)
            nsqd.peer.expect(command)
            nsqd.ok()
            published.result(PATIENCE)
        assert p.flush(PATIENCE)
    assert hook.ends == [None, None, None]


def test_around_publish_gets_the_error_that_the_caller_gets(transport: MemoryTransport) -> None:
    transport.refuse()
    hook = Around()
    raised: list[nsq.NsqError] = []
    calls: list[Callable[[Producer], Any]] = [
        lambda p: p.publish("orders", b"body"),
        lambda p: p.publish("no topic", b"body"),
        lambda p: p.multi_publish("no topic", [b"body"]),
        lambda p: p.publish_async("orders", b"body").result(PATIENCE),
        lambda p: p.multi_publish_async("orders", [b"body"]).result(PATIENCE),
        lambda p: p.publish_async("no topic", b"body"),
    ]
    with producer(transport, around_publish=hook, publish_timeout=0.01) as p:
        for call in calls:
            with pytest.raises(nsq.NsqError) as caught:
                call(p)
            raised.append(caught.value)
        assert p.flush(PATIENCE)
        for call in (
            lambda p: p.multi_publish("orders", b"one body, not several"),
            lambda p: p.multi_publish("orders", ["text"]),
        ):
            with pytest.raises(nsq.UsageError):
                call(p)
        with pytest.raises(nsq.UsageError, match=r"Around object at .* returned 0 bodies for 1") as dropped:
            p.publish("orders", b"dropped")
        raised.append(dropped.value)  # the hook had begun
    assert len(hook.ends) == len(raised)
    assert set(map(id, hook.ends)) == set(map(id, raised))


def test_an_error_of_a_hook_changes_no_result(
    transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no span")

    hooks: dict[str, Any] = {"around_publish": lambda topic, bodies: (bodies, fail), "on_refused": fail}
    with producer(transport, **hooks) as p:
        stored = p.publish_async("orders", b"1")
        nsqd = accept_publisher(transport)
        nsqd.answer(b"1")
        stored.result(PATIENCE)
        one = publishing(p, b"2")
        nsqd.answer(b"2")
        one.result(PATIENCE)
        several = in_thread(lambda: p.multi_publish("orders", [b"3"]))
        nsqd.peer.expect(commands.mpub("orders", [b"3"]))
        nsqd.refuse("E_MPUB_FAILED")
        with pytest.raises(nsq.MpubFailed):
            several.result(PATIENCE)
        with pytest.raises(nsq.InvalidName):
            p.publish("no topic", b"4")
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 5, said
    assert sum("on_refused failed for a publish to 'no topic'" in each for each in said) == 1


def test_calls_that_are_refused_at_once_are_reported_and_no_others(transport: MemoryTransport) -> None:
    refused: list[tuple[str, str]] = []

    def note(topic: str, error: nsq.NsqError) -> None:
        refused.append((topic, type(error).__name__))

    events: list[Failed] = []
    with producer(transport, on_refused=note, on_failed=events.append, max_pending=1) as p:
        stuck = p.publish_async("orders", b"stuck")
        calls: dict[str, Callable[[], object]] = {
            "InvalidName": lambda: p.publish("no topic", b"body"),
            "InvalidMessage": lambda: p.publish_async("orders", b""),
            "UsageError": lambda: p.multi_publish("orders", b"one body"),
            "QueueFull": lambda: p.multi_publish_async("orders", [b"body"], block=False),
        }
        for call in calls.values():
            with pytest.raises(nsq.NsqError):
                call()
        nsqd = accept_publisher(transport)
        nsqd.expect(b"stuck")
        nsqd.refuse("E_BAD_MESSAGE")
        assert stuck.exception(PATIENCE) is not None
    with pytest.raises(nsq.Closed):
        p.publish("orders", b"late")
    assert [name for _, name in refused] == [*calls, "Closed"]
    assert [topic for topic, _ in refused] == ["no topic", *["orders"] * 4]
    assert [type(event.error) for event in events] == [nsq.BadMessage]


def test_headers_of_around_publish_are_refused_by_the_original_nsq() -> None:
    hook = Around({"traceparent": "00-ab-cd-01"})
    with (
        producer(MemoryTransport(), around_publish=hook) as p,
        pytest.raises(nsq.UsageError, match="headers"),
    ):
        p.publish("orders", b"body")
    assert [type(error) for error in hook.ends] == [nsq.UsageError]


def test_ping_shakes_hands_with_each_and_says_which_does_not_answer(transport: MemoryTransport) -> None:
    with producer(transport, A, B) as p:
        pinged = in_thread(p.ping)
        for address in (A, B):
            nsqd = accept_publisher(transport)
            assert nsqd.address == address
            nsqd.peer.wait_closed()
        pinged.result(PATIENCE)
        one = in_thread(lambda: p.ping(B))
        accept_publisher(transport)
        one.result(PATIENCE)
        assert transport.dials == [A, B, B]

        transport.refuse(A)
        pinged = in_thread(p.ping)
        accept_publisher(transport)
        with pytest.raises(
            nsq.ConnectionFailed, match=f"1 of 2 nsqds do not answer: .*{A}.*connection refused"
        ):
            pinged.result(PATIENCE)
        with pytest.raises(nsq.DialFailed):
            p.ping(A)


# Other processes


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "fork",
    [
        pytest.param(os.fork, id="Python's"),
        pytest.param(
            ctypes.PyDLL(None).fork,
            id="one of C code",
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 13), reason="not run: CPython 3.13 can crash in such a child"
            ),
        ),
    ],
)
def test_in_a_forked_child_the_parents_publishes_have_ended(
    p: Producer, nsqd: PublishedTo, fork: Callable[[], int]
) -> None:
    future = p.publish_async("orders", b"body")
    nsqd.expect(b"body")
    # After C code's fork, a child would hand the GIL to the thread that just asked for it, and wait for ever.
    # So none asks for 60 s; threads that waited with the usual interval get the GIL before.
    usual_interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    time.sleep(0.05)
    pid = fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(PATIENCE))  # a child that hangs must not outlive the test
        anew = p.stats().pending == 0 and isinstance(future.done() and future.exception(), nsq.Forked)
        os._exit(0 if anew else 1)
    sys.setswitchinterval(usual_interval)
    assert os.waitpid(pid, 0)[1] == 0
    assert not future.done()
    nsqd.ok()
    future.result(PATIENCE)


# The object


def test_a_close_after_a_start_that_found_no_thread_is_quick(
    p: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("nsq-producer-read"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(nsq.PublishFailed, match="no thread can be started"):
            p.publish("orders", b"body")
    for _ in range(2):
        assert p.close(PATIENCE) == CloseReport(clean=True)
    with pytest.raises(nsq.Closed):
        p.publish("orders", b"body")


def test_it_cannot_be_pickled_and_its_repr_holds_no_secret() -> None:
    with producer(MemoryTransport(), auth_secret="s3cret") as p:
        with pytest.raises(TypeError, match="make one in each process"):
            pickle.dumps(p)
        assert repr(p) == "<Producer nsqd-a:4150 not connected>"


def test_an_unknown_option_is_refused_and_help_shows_the_others(p: Producer) -> None:
    misspelt: Any = {"partitions": 1}
    with pytest.raises(TypeError, match="a publish has no option 'partitions'"):
        p.publish("orders", b"body", **misspelt)
    for client, suffix in [(Producer, ""), (Producer, "_async"), (aio.Producer, "")]:
        for verb in ("publish", "multi_publish"):
            shown = inspect.signature(getattr(client, verb + suffix)).parameters
            assert "options" not in shown
            assert [*shown][-5:] == [*PublishOptions.__annotations__]
