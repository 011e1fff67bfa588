"""``nsq.aio`` on the event loops of asyncio and uvloop, against a real nsqd."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import uvloop

import nsq
from nsq import aio
from nsq.testing import Nsqd

from .consuming import CHANNEL, PATIENCE, TOPIC, channel_of, create, expect_drained, log_of, numbered, publish

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="module", autouse=True)
def first_uvloop() -> None:
    """Make a loop before a test looks at descriptors: the first one keeps a pipe for the whole process."""
    uvloop.new_event_loop().close()


@pytest.fixture
def nsqd(nsqd: Nsqd) -> Nsqd:
    """One whose channel exists."""
    create(nsqd)
    return nsqd


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main, 2 * PATIENCE))

    return run


def make(nsqd: Nsqd, **options: Any) -> aio.Consumer:
    quick = {"default_requeue_delay": 0.0, "max_backoff_duration": 0.0, "reconnect_max": 0.5}
    return aio.Consumer(TOPIC, CHANNEL, nsqd=nsqd.tcp_address, **{**quick, **options})


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for happens in nsqd
        await asyncio.sleep(0.01)


async def take(consumer: aio.Consumer, count: int) -> list[bytes]:
    """Take and finish this number of messages."""
    bodies = []
    async for message in consumer:
        async with message:
            bodies.append(message.body)
        if len(bodies) == count:
            break
    return bodies


# Publishing.


def test_coroutines_publish_and_iterate(nsqd: Nsqd, run: Run) -> None:
    async def main() -> None:
        async with aio.Producer(nsqd.tcp_address) as producer:
            await producer.publish(TOPIC, b"one")
            await producer.multi_publish(TOPIC, iter([b"two", b"three"]))
            await producer.publish(TOPIC, b"four", defer=0.05)
        async with make(nsqd) as consumer:
            assert sorted(await take(consumer, 4)) == [b"four", b"one", b"three", b"two"]

    run(main())
    expect_drained(nsqd)


def test_the_loop_runs_on_while_a_publish_waits_for_an_nsqd_or_for_room(run: Run) -> None:
    async def main() -> tuple[list[nsq.Published | BaseException], int]:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        async with aio.Producer("127.0.0.1:1", max_pending=2) as producer:
            errors = await asyncio.gather(
                *[producer.publish(TOPIC, b"body", timeout=2.0) for _ in range(2)],
                *[producer.publish(TOPIC, b"body", timeout=0.2) for _ in range(3)],
                return_exceptions=True,
            )
        ticking.cancel()
        return errors, turns

    errors, turns = run(main())
    assert [type(error) for error in errors] == [nsq.PublishFailed] * 2 + [nsq.QueueFull] * 3
    assert turns >= 10


def test_a_publish_of_what_cannot_be_sent_raises_the_usual_errors(nsqd: Nsqd, run: Run) -> None:
    async def main() -> None:
        async with aio.Producer(nsqd.tcp_address) as producer:
            with pytest.raises(nsq.InvalidName):
                await producer.publish("no topic", b"body")
            with pytest.raises(nsq.UsageError, match="bodies is one bytes"):
                await producer.multi_publish(TOPIC, b"body")  # type: ignore[arg-type]
            with pytest.raises(nsq.UsageError, match="timeout is -1"):
                await producer.publish(TOPIC, b"body", timeout=-1)
        with pytest.raises(nsq.Closed):
            await producer.publish(TOPIC, b"body")

    run(main())


def test_cancelled_publishes_leave_nothing_behind(nsqd: Nsqd, run: Run) -> None:
    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        async with aio.Producer(nsqd.tcp_address, max_pending=50) as producer:
            tasks = [asyncio.create_task(producer.publish(TOPIC, body)) for body in numbered(1000)]
            for turn, task in enumerate(tasks):
                if turn % 10 == 0:
                    await asyncio.sleep(0.0005 * (turn % 7))
                if turn % 2:
                    task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(each) for each in results[1::2]} <= {asyncio.CancelledError, nsq.Published}
            assert results[::2] == [nsq.Published()] * 500
            assert (await producer.flush()).clean
            assert producer.producer.stats().pending == 0
            await producer.publish(TOPIC, b"after them")
        gc.collect()
        assert not complaints

    run(main())
    assert channel_of(nsqd)["depth"] >= 501


def test_a_publish_that_is_cancelled_before_it_is_sent_is_never_sent(nsqd: Nsqd, run: Run) -> None:
    nsqd.stop(keep_data=True)

    async def main() -> tuple[int, float]:
        async with aio.Producer(nsqd.tcp_address, publish_timeout=10.0) as producer:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await producer.publish(TOPIC, b"cancelled")
            pending = producer.producer.stats().pending
            await asyncio.to_thread(nsqd.start)
            await producer.publish(TOPIC, b"after them")
            nsqd.stop(keep_data=True)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await producer.multi_publish(TOPIC, [b"cancelled"])
            began = time.monotonic()
        return pending, time.monotonic() - began

    pending, leaving = run(main())
    nsqd.start()
    assert pending == 0
    assert leaving < 5
    assert channel_of(nsqd)["depth"] == 1


def test_a_producer_belongs_to_one_loop(nsqd: Nsqd) -> None:
    producer = aio.Producer(nsqd.tcp_address)
    asyncio.run(producer.publish(TOPIC, b"body"))
    with pytest.raises(nsq.UsageError, match="another event loop"):
        asyncio.run(producer.publish(TOPIC, b"body"))
    asyncio.run(producer.close())


# Consuming.


def test_handlers_work_on_many_messages_at_a_time(nsqd: Nsqd, run: Run) -> None:
    publish(nsqd, numbered(60))
    at_work = most = 0
    bodies = []

    async def handle(prefix: str, message: nsq.Message) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.02)
        at_work -= 1
        bodies.append(message.body)

    async def main() -> None:
        async with make(nsqd).add_handler(partial(handle, "a"), concurrency=10):
            await until(lambda: len(bodies) == 60)

    run(main())
    assert sorted(bodies) == sorted(numbered(60))
    assert 5 <= most <= 10
    expect_drained(nsqd)


def test_what_a_handler_returns_or_raises_is_the_answer(nsqd: Nsqd, run: Run) -> None:
    publish(nsqd, [b"raise", b"false", b"requeue", b"answered", b"fine"])
    seen: dict[bytes, int] = {}

    async def handle(message: nsq.Message) -> object:
        seen[message.body] = message.attempts
        if message.body == b"answered":
            message.finish()
            raise RuntimeError("too late to matter")
        if message.attempts > 1 or message.body == b"fine":
            return None
        if message.body == b"raise":
            raise ValueError("not this time")
        if message.body == b"requeue":
            raise nsq.Requeue(0.0, backoff=False)
        return False

    async def main() -> None:
        async with make(nsqd).add_handler(handle, concurrency=2):
            await until(lambda: len(seen) == 5 and sum(seen.values()) == 8)

    with log_of() as log:
        run(main())
    assert seen == {b"raise": 2, b"false": 2, b"requeue": 2, b"answered": 1, b"fine": 1}
    assert sum("handler failed" in line for line in log.lines) == 2
    expect_drained(nsqd, requeues=3)


@pytest.mark.parametrize("when", ["at its next await", "at its end", "without uncancel", "while idle"])
def test_a_handler_whose_task_is_cancelled_goes_on_with_other_messages(
    nsqd: Nsqd, run: Run, when: str
) -> None:
    handled, tasks = set[bytes](), list[asyncio.Task[Any]]()

    async def handle(message: nsq.Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        if message.attempts == 1 and when == "at its next await":
            task.cancel()
            await asyncio.sleep(0)
        if message.attempts == 1 and when == "without uncancel":  # as some libraries do for a timeout
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            own = asyncio.get_running_loop().create_future()
            own.cancel()
            await own
        handled.add(message.body)
        if when == "at its end":
            task.cancel()

    async def main() -> bool:
        consumer = make(nsqd).add_handler(handle)
        running = asyncio.create_task(consumer.run())
        for number in range(4):
            publish(nsqd, numbered(10)[number : number + 1])
            await until(lambda: len(handled) > number)  # noqa: B023
            if when == "while idle":
                tasks[-1].cancel()
                await asyncio.sleep(0)
        healthy = bool(consumer.consumer.health().ok)
        await consumer.stop()
        await running
        return healthy

    assert run(main())
    assert len(handled) == 4
    expect_drained(nsqd, requeues=4 if when in ("at its next await", "without uncancel") else 0)


def test_a_loop_can_end_though_its_consumer_was_not_stopped(nsqd: Nsqd, run: Run) -> None:
    publish(nsqd, [b"message"])
    at_work, consumers, complaints = list[bool](), list[aio.Consumer](), list[str]()

    async def handle(_: nsq.Message) -> None:
        at_work.append(True)
        await asyncio.sleep(PATIENCE)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(str(about)))
        consumers.append(await make(nsqd).add_handler(handle, concurrency=2).start())
        await until(lambda: at_work)

    run(main())
    consumers[0].consumer.stop()
    consumers.clear()
    gc.collect()
    assert complaints == []


def test_a_failed_block_requeues_and_a_cancelled_one_requeues_at_once(nsqd: Nsqd, run: Run) -> None:
    publish(nsqd, [b"message"])

    async def worker(consumer: aio.Consumer, begun: asyncio.Event) -> None:
        async for message in consumer:
            async with message:
                begun.set()
                await asyncio.sleep(PATIENCE)

    async def main() -> list[int]:
        attempts = []
        # A default delay and a backoff would be seen: the message would not come back in time.
        slow = {"default_requeue_delay": 600.0, "max_backoff_duration": 600.0, "backoff_after": 0.0}
        async with make(nsqd, **slow) as consumer:
            begun = asyncio.Event()
            task = asyncio.create_task(worker(consumer, begun))
            await begun.wait()
            task.cancel()
            await asyncio.wait({task})
            async for message in consumer:
                attempts.append(message.attempts)
                with pytest.raises(ValueError, match="failed"):
                    async with message:
                        raise ValueError("failed")
                break
            await until(lambda: consumer.consumer.health().backoff_level == 1)
        return attempts

    assert run(main()) == [2]
    assert channel_of(nsqd)["deferred_count"] == 1


def test_nothing_waits_for_the_threads_of_asyncio_which_the_program_may_keep_busy(
    nsqd: Nsqd, run: Run
) -> None:
    gate = threading.Event()
    given_up: list[nsq.Message] = []

    async def hopeless(message: nsq.Message) -> None:
        raise nsq.GiveUp("never")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        busy = [loop.run_in_executor(None, gate.wait, PATIENCE) for _ in range(40)]
        try:
            async with aio.Producer(nsqd.tcp_address) as producer:
                await producer.publish(TOPIC, b"hopeless")
                assert (await producer.flush()).clean
            consumer = await make(nsqd, give_up=given_up.append).add_handler(hopeless).start()
            await until(lambda: given_up)
            assert (await consumer.stop(PATIENCE)).clean
        finally:
            gate.set()
        assert all(await asyncio.gather(*busy))

    run(main())
    expect_drained(nsqd)


def test_a_consumer_whose_start_is_cancelled_stops(nsqd: Nsqd, run: Run) -> None:
    async def main() -> bool:
        consumer = make(nsqd)
        start = asyncio.create_task(consumer.start())
        await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait({start})
        assert start.cancelled()
        return consumer.consumer.wait(PATIENCE)

    assert run(main())


def test_a_stop_gives_waiting_messages_back_at_once(nsqd: Nsqd, run: Run) -> None:
    publish(nsqd, numbered(200))

    async def main() -> nsq.StopReport:
        consumer = await make(nsqd, max_in_flight=100).start()
        await take(consumer, 1)
        await until(lambda: consumer.consumer.stats().in_flight == 100)
        began = time.monotonic()
        report = await consumer.stop(PATIENCE)
        assert time.monotonic() - began < PATIENCE / 2
        assert [message async for message in consumer] == []
        return report

    assert run(main()).clean
    assert channel_of(nsqd)["depth"] == 199
    assert channel_of(nsqd)["timeout_count"] == 0

    async def rest() -> list[bytes]:
        async with make(nsqd, max_in_flight=50) as consumer:
            return await take(consumer, 199)

    assert len(set(run(rest()))) == 199
    expect_drained(nsqd, requeues=channel_of(nsqd)["requeue_count"])


def test_a_stop_waits_for_handlers_and_cancels_them_when_its_time_is_up(nsqd: Nsqd, run: Run) -> None:
    publish(nsqd, [b"quick", b"endless"])
    begun: set[bytes] = set()

    async def handle(message: nsq.Message) -> None:
        begun.add(message.body)
        await asyncio.sleep(0.2 if message.body == b"quick" else 10 * PATIENCE)

    async def main() -> nsq.StopReport:
        consumer = await make(nsqd).add_handler(handle, concurrency=2).start()
        await until(lambda: len(begun) == 2)
        return await consumer.stop(4.0)

    assert run(main()).clean
    stats = channel_of(nsqd)
    assert (stats["depth"], stats["requeue_count"], stats["timeout_count"]) == (1, 1, 0)


def test_a_stop_does_not_wait_for_a_handler_that_ignores_its_cancellation(nsqd: Nsqd, run: Run) -> None:
    publish(nsqd, [b"endless"])

    async def main() -> nsq.StopReport:
        begun, over = asyncio.Event(), asyncio.Event()

        async def handle(message: nsq.Message) -> None:
            begun.set()
            while not over.is_set():
                with suppress(asyncio.CancelledError):
                    await over.wait()

        consumer = await make(nsqd).add_handler(handle).start()
        await begun.wait()
        asyncio.get_running_loop().call_later(PATIENCE / 2, over.set)
        report = await consumer.stop(1.0)
        assert not over.is_set()
        over.set()
        return report

    assert not run(main()).clean


def test_run_stops_at_a_signal_and_restores_the_handlers(nsqd: Nsqd, run: Run) -> None:
    publish(nsqd, [b"message"])
    before = signal.getsignal(signal.SIGTERM)

    async def handle(message: nsq.Message) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # a repetition, as from a group
        await asyncio.sleep(0.2)

    assert run(make(nsqd).add_handler(handle).run(PATIENCE)).clean
    assert signal.getsignal(signal.SIGTERM) is before
    expect_drained(nsqd)


def test_messages_in_work_are_touched_where_asked_for(nsqd: Nsqd, run: Run) -> None:
    publish(nsqd, numbered(2))

    async def main() -> None:
        async with make(nsqd, max_in_flight=2, msg_timeout=2.0, auto_touch=True) as consumer:
            await until(lambda: consumer.consumer.stats().in_flight == 2)
            async for message in consumer:
                async with message:
                    await asyncio.sleep(5.0)
                    assert not message.responded
                    assert message.attempts == 1
                break
            await take(consumer, 1)  # it has waited, and comes again

    run(main())
    expect_drained(nsqd, timeouts=None)


def test_a_handler_that_takes_longer_than_the_timeout_runs_once(nsqd: Nsqd, run: Run) -> None:
    publish(nsqd, [b"slow"])
    attempts: list[int] = []

    async def work(message: nsq.Message) -> None:
        attempts.append(message.attempts)
        await until(lambda: consumer.consumer.stats().received == 2)
        await asyncio.sleep(1.5)  # the second delivery would time out too

    async def main() -> None:
        await consumer.start()
        await until(lambda: channel_of(nsqd)["in_flight_count"] == 0 and attempts)
        await consumer.stop()

    consumer = make(nsqd, msg_timeout=1.0).add_handler(work, concurrency=3)
    run(main())
    assert attempts == [1]
    expect_drained(nsqd, timeouts=1)


def test_a_refused_subscription_ends_the_iteration_and_run(nsqd: Nsqd, run: Run) -> None:
    async def iterate() -> None:
        async with make(nsqd, msg_timeout=3000.0) as consumer:
            async for _ in consumer:
                raise AssertionError("a message came")

    async def handle(message: nsq.Message) -> None: ...

    async def handle_all() -> None:
        await make(nsqd, msg_timeout=3000.0).add_handler(handle).run()

    for refused in (iterate, handle_all):
        with pytest.raises(nsq.ServerError):
            run(refused())


def test_a_loop_that_is_closed_too_early_stops_the_consumer(nsqd: Nsqd) -> None:
    async def main() -> aio.Consumer:
        return await make(nsqd).start()

    consumer = asyncio.run(main())
    publish(nsqd, [b"message"])
    assert consumer.consumer.wait(PATIENCE)
    assert consumer.consumer.stop().clean
    assert channel_of(nsqd)["depth"] == 1


# What callers are told.


def test_errors_for_mistakes_name_the_remedy() -> None:
    consumer = aio.Consumer(TOPIC, CHANNEL, nsqd="127.0.0.1:1")
    with pytest.raises(nsq.ConfigError, match="not an async def"):
        consumer.add_handler(lambda message: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(nsq.ConfigError, match="concurrency is 0"):
        consumer.add_handler(until, concurrency=0)  # type: ignore[arg-type]
    with pytest.raises(nsq.ConfigError, match="concurrency"):
        aio.Consumer(TOPIC, CHANNEL, nsqd="127.0.0.1:1", threads=4)
    with pytest.raises(nsq.UsageError, match="has no handler"):
        asyncio.run(consumer.run())

    async def iterate(consumer: aio.Consumer) -> None:
        async for _ in consumer:
            pass

    with pytest.raises(nsq.UsageError, match="has not been started"):
        asyncio.run(iterate(consumer))

    async def handle(message: nsq.Message) -> None: ...

    with pytest.raises(nsq.UsageError, match="has handlers"):
        asyncio.run(iterate(consumer.add_handler(handle)))
    with pytest.raises(nsq.ConfigError, match=r"nsq\.aio\.Consumer"):
        nsq.Consumer(TOPIC, CHANNEL, nsqd="127.0.0.1:1").add_handler(handle)
