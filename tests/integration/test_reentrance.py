"""A producer is called, dropped and closed at unusual moments: in signal handlers, ``__del__`` and
callbacks, and at the end of a program. No call waits for itself, and every publish ends.
"""

from __future__ import annotations

import concurrent.futures
import gc
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nsq
from nsq.testing import Nsqd
from tests.fakes.interrupts import Ticking
from tests.fakes.programs import run_python

from .clients import frozen, topic_stats
from .patience import eventually

BODY = b"x" * 200
PATIENCE = 30.0


@pytest.fixture
def nsqd(roomy_nsqd: Nsqd) -> Nsqd:
    return roomy_nsqd


@pytest.fixture
def producer(nsqd: Nsqd) -> Iterator[nsq.Producer]:
    with nsq.Producer(nsqd.tcp_address) as producer:
        producer.publish("reentrance", BODY)
        yield producer


@pytest.mark.parametrize("handled", ["publish", "publish_async", "flush"])
@pytest.mark.parametrize("interrupted", ["publish", "publish_async", "multi_publish", "flush"])
def test_a_signal_handler_may_publish_and_flush(
    producer: nsq.Producer, handled: str, interrupted: str
) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "publish": lambda: producer.publish("reentrance", BODY),
        "publish_async": lambda: producer.publish_async("reentrance", BODY),
        "multi_publish": lambda: producer.multi_publish("reentrance", [BODY] * 3),
        "flush": lambda: producer.flush() or pytest.fail("not flushed"),
    }
    with Ticking(calls[handled]) as ticking:
        deadline = time.monotonic() + PATIENCE
        while len(ticking.results) < 200:
            calls[interrupted]()
            assert time.monotonic() < deadline
    assert producer.flush(PATIENCE)
    for future in ticking.results:
        if isinstance(future, concurrent.futures.Future):
            assert future.exception(0) is None


def test_a_del_method_may_publish(producer: nsq.Producer) -> None:
    futures = []

    class Goodbye:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            futures.append(producer.publish_async("reentrance", BODY))

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            Goodbye()
            producer.publish("reentrance", BODY)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert producer.flush(PATIENCE)
    assert len(futures) == 300
    assert all(future.exception(0) is None for future in futures)


def test_a_signal_handler_may_make_the_first_publish(nsqd: Nsqd) -> None:
    """Cold, while the code that it interrupts starts threads too."""
    for _ in range(20):
        with nsq.Producer(nsqd.tcp_address) as ours, nsq.Producer(nsqd.tcp_address) as theirs:

            def start_and_publish(theirs: nsq.Producer = theirs) -> None:
                theirs.publish("reentrance", BODY)

            with Ticking(start_and_publish) as ticking:
                ours.publish("reentrance", BODY)
                while not ticking.results:
                    thread = threading.Thread(target=int)
                    thread.start()
                    thread.join()
            assert ours.stats().published == 1
            assert theirs.stats().published == len(ticking.results)


def test_a_call_that_would_wait_for_its_own_thread_is_refused(nsqd: Nsqd) -> None:
    """A user's transport that publishes, or a logging handler: refused at once."""
    from nsq.transport import default_transport

    errors: list[BaseException] = []
    futures: list[concurrent.futures.Future[None]] = []
    dialed = threading.Event()

    class Publishing:
        def connect(self, address: str, *, timeout: float) -> Any:
            while not producer.stats().pending:  # its threads are only just being started
                time.sleep(0.001)
            for call in (lambda: producer.publish("reentrance", BODY), producer.flush, producer.close):
                try:
                    call()  # type: ignore[operator]
                except nsq.UsageError as error:
                    errors.append(error)
            futures.append(producer.publish_async("reentrance", BODY))
            dialed.set()
            return default_transport.connect(address, timeout=timeout)

    producer = nsq.Producer(nsqd.tcp_address, transport=Publishing())
    with producer:
        producer.publish("reentrance", BODY)
        assert dialed.wait(PATIENCE)
        assert len(errors) == 3
        assert all("nsq-producer-read" in str(error) for error in errors)
        assert futures[0].exception(PATIENCE) is None


def test_a_signal_handler_may_close_the_producer(nsqd: Nsqd) -> None:
    for _ in range(20):
        producer = nsq.Producer(nsqd.tcp_address)
        producer.publish("reentrance", BODY)
        with Ticking(producer.close) as ticking:
            try:
                while True:
                    producer.publish("reentrance", BODY)
            except nsq.NsqError:  # Closed, or what became of the publish that the handler has interrupted
                pass
        assert ticking.results[0]
        assert producer.close()


def test_a_close_with_its_threads_ends_in_time_whatever_nsqd_does(nsqd: Nsqd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        producer = nsq.Producer(f"127.0.0.1:{silent.getsockname()[1]}", nsqd.tcp_address)
        futures = [producer.publish_async("reentrance", BODY) for _ in range(10)]
        with frozen(nsqd):
            futures += [producer.publish_async("reentrance", BODY) for _ in range(10)]
            started = time.monotonic()
            report = producer.close(1.0)
            took = time.monotonic() - started
        assert took < producer.config.publish_timeout / 2
        assert report.unfinished_threads == []
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("nsq-producer")]
        assert all(future.done() for future in futures)


def test_a_producer_that_is_dropped_unclosed_sends_all_and_ends_its_threads(nsqd: Nsqd) -> None:
    producer = nsq.Producer(nsqd.tcp_address)
    producer.publish("dropped", BODY)
    futures = [producer.publish_async("dropped", BODY) for _ in range(100)]
    producers = [producer]
    del producer
    with pytest.warns(ResourceWarning, match="was not closed"):
        producers.clear()
    assert all(future.exception(PATIENCE) is None for future in futures)
    deadline = time.monotonic() + PATIENCE
    while any(thread.name.startswith("nsq-producer") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# The end of a program.

ENDS = {
    "cold": """
for n in range(500):
    producer.publish_async(topic, b"%d" % n)
""",
    "warm": """
producer.publish(topic, b"first")
for n in range(499):
    producer.publish_async(topic, b"%d" % n)
""",
    "atexit": """
import atexit
def at_the_end():
    for n in range(200):
        producer.publish(topic, b"%d" % n)
    for n in range(299):
        producer.publish_async(topic, b"%d" % n)
atexit.register(at_the_end)
producer.publish(topic, b"first")
""",
    "connection lost": """
producer.publish(topic, b"first")
import atexit, time
def at_the_end():
    producer._pool.nsqds.endpoints.all[0].cut_off()
    for n in range(499):
        producer.publish_async(topic, b"%d" % n)
atexit.register(at_the_end)
""",
    "fork": """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
producer.publish(topic, b"first")
for n in range(499):
    producer.publish_async(topic, b"%d" % n)
if not os.fork():
    sys.exit()  # with all that is done at exit
os.wait()
""",
    "lookupd": """
for n in range(500):
    producer.publish_async(topic, b"%d" % n)
""",
}


def pythons() -> list[str]:
    """This one, and others on PATH that have what nsq needs: what is started late fails on some only."""
    others = (shutil.which(f"python3.{minor}") for minor in range(12, 16))
    return [sys.executable, *(path for path in others if path and _runs(path))]


def _runs(path: str) -> bool:
    return not subprocess.run([path, "-c", "import snappy"], capture_output=True, check=False).returncode


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_has_sent_all(nsqd: Nsqd, end: str) -> None:
    from nsq.testing import Nsqlookupd

    with Nsqlookupd() as lookupd, Nsqd(lookupd=[lookupd]) as found:
        where = f"nsqlookupd={lookupd.http_address!r}" if end == "lookupd" else repr(nsqd.tcp_address)
        if end == "lookupd":
            eventually(lambda: "broadcast_address" in lookupd.get("/nodes").text)
        for number, python in enumerate(pythons()):
            topic = f"{end.replace(' ', '-')}-{number}"
            program = f"import nsq\ntopic = {topic!r}\nproducer = nsq.Producer({where})\n{ENDS[end]}"
            done = run_python("-c", program, python=python)
            assert done.returncode == 0
            assert not done.stderr or "is lost" in done.stderr
            assert published(found if end == "lookupd" else nsqd, topic) == 500


def published(nsqd: Nsqd, topic: str) -> int:
    return int(topic_stats(nsqd, topic)["message_count"])


#: What calls ``late`` when the interpreter ends, and the words of a refusal.
LATE = {
    "atexit": ("atexit.register(late)", "interpreter"),
    "a thread that outlives main": (
        "threading.Thread(target=lambda: (threading.main_thread().join(), late())).start()",
        "before the main thread ends",
    ),
}


@pytest.mark.parametrize("caller", LATE)
def test_a_first_publish_at_the_end_is_sent_or_refused_at_once_with_the_remedy(
    nsqd: Nsqd, caller: str
) -> None:
    call, remedy = LATE[caller]
    program = f"""
import atexit, nsq, threading, time
producer = nsq.Producer({nsqd.tcp_address!r})
def late():
    started = time.monotonic()
    try:
        producer.publish("late", b"body")
    except nsq.PublishFailed as error:
        assert {remedy!r} in str(error), error
    assert time.monotonic() - started < 5
    print("ended")
{call}
"""
    for python in pythons():
        done = run_python("-c", program, python=python)
        assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_worker_whose_main_module_publishes_at_import_has_sent_all(
    nsqd: Nsqd, method: str, tmp_path: Path
) -> None:
    program = f"""
import multiprocessing, nsq, sys
producer, topic = nsq.Producer({nsqd.tcp_address!r}), sys.argv[1]
producer.publish(topic, b"at import")

def work():
    for n in range(500):
        producer.publish_async(topic, b"%d" % n)

if __name__ == "__main__":
    worker = multiprocessing.get_context({method!r}).Process(target=work)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    for number, python in enumerate(pythons()):
        topic = f"worker-{method}-{number}"
        # From 3.12 on Python warns of a fork in a program with threads.
        done = run_python("-Wignore::DeprecationWarning", str(script), topic, python=python)
        assert (done.returncode, done.stderr) == (0, "")
        # Both processes import the main module, unless the worker is a fork; that ends without atexit.
        assert published(nsqd, topic) == 501 + (method != "fork")


def test_an_interpreter_beside_the_main_one_ends_with_its_producer_unclosed(nsqd: Nsqd) -> None:
    """Applications do that under mod_wsgi. A thread that is left would abort the process."""
    for number, python in enumerate(pythons()):
        topic = f"beside-{number}"
        inner = f"""
import nsq
producer = nsq.Producer({nsqd.tcp_address!r})
for n in range(500):
    producer.publish_async({topic!r}, b"%d" % n)
"""
        program = f"""
try:
    from _testcapi import run_in_subinterp
except ImportError:
    print("not built with this module")
else:
    print("ended", run_in_subinterp({inner!r}))
"""
        done = run_python("-c", program, python=python)
        assert (done.returncode, done.stderr) == (0, "")
        if done.stdout == "ended 0\n":
            assert published(nsqd, topic) == 500
        else:
            assert done.stdout == "not built with this module\n"


#: Where a program can keep a producer until Python has cleared modules: ours, and those that we use.
KEPT_IN = {
    "the program": "",
    "the exception hook": "sys.excepthook = lambda *_, kept=producer: None; del producer",
    "another module": "import os; os.kept = producer; del producer",
}


@pytest.mark.parametrize("place", KEPT_IN)
@pytest.mark.parametrize("publish", ["producer.publish('kept', b'body')", ""])
def test_a_producer_alive_at_the_end_of_a_program_writes_nothing(
    nsqd: Nsqd, place: str, publish: str
) -> None:
    program = f"import nsq, sys; producer = nsq.Producer({nsqd.tcp_address!r}); {publish}\n{KEPT_IN[place]}"
    for python in pythons():
        done = run_python("-c", program, python=python)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_producer_alive_at_the_end_of_a_program_warns_in_development_mode(nsqd: Nsqd) -> None:
    program = f"import nsq; producer = nsq.Producer({nsqd.tcp_address!r}); producer.publish('kept', b'body')"
    for python in pythons():
        done = run_python("-Xdev", "-c", program, python=python)
        assert "was not closed" in done.stderr


#: What a ``__del__`` calls that runs after the interpreter has ended all other threads, and how that ends.
CALLS_BEHIND_THE_END = {
    "publish": ("producer.publish('t', b'late')", "PublishFailed"),
    "publish_async": ("producer.publish_async('t', b'late').result()", "PublishFailed"),
    "flush": ("producer.flush()", "False"),
    "close": ("producer.close()", "False"),
    "ping": ("producer.ping()", "ConnectionFailed"),
    "a first publish": ("cold.publish('t', b'late')", "PublishFailed"),
    "start": ("consumer.start()", "NsqError"),
    "stop": ("running.stop()", "False"),
}


@pytest.mark.parametrize("name", CALLS_BEHIND_THE_END)
def test_a_call_after_the_end_of_all_threads_returns_at_once(nsqd: Nsqd, name: str) -> None:
    call, outcome = CALLS_BEHIND_THE_END[name]
    program = f"""
import nsq, sys, time
ADDRESS = {nsqd.tcp_address!r}
class Owner:
    def __init__(self):
        self.producer, self.cold = nsq.Producer(ADDRESS), nsq.Producer(ADDRESS)
        self.consumer, self.running = [
            nsq.Consumer("t", "c#ephemeral", nsqd=ADDRESS).add_handler(id) for _ in range(2)
        ]
        self.running.start()
        self.producer.publish("t", b"body")
    def __del__(self, nsq=nsq, sys=sys, time=time):
        producer, cold, consumer, running = self.producer, self.cold, self.consumer, self.running
        assert sys.is_finalizing()
        started = time.monotonic()
        try:
            outcome = bool({call})
        except nsq.NsqError as error:
            outcome = type(error).__name__
        sys.stdout.write(f"{{outcome}} {{time.monotonic() - started < 5}}")
owner = Owner()
"""
    for python in pythons():
        done = run_python("-c", program, python=python)
        assert (done.returncode, done.stdout) == (0, f"{outcome} True"), done.stderr
