"""Two signals to stop within a second, as ``timeout``, terminals and supervisors send them, count as one,
and nothing is lost. Each test starts the real program.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.fakes.programs import run_python
from tests.integration.clients import stats
from tests.integration.consuming import CHANNEL, TOPIC, channel_of, create, numbered, publish, until
from tests.integration.judged import only_ours
from tests.integration.running_tools import ROOT

pytestmark = only_ours("Go's programs have other rules")

INT, TERM = signal.SIGINT, signal.SIGTERM
#: A command that runs the program, the signals to it, and the seconds after each. ``timeout`` sends a SIGTERM
#: that it gets to its child, and then to its whole group.
WAYS = pytest.mark.parametrize(
    ("prefix", "signals", "gap"),
    [
        ([], [INT, TERM], 0.0),
        ([], [TERM, INT], 0.05),
        (["timeout", "300"], [TERM], 0.0),
    ],
    ids=["INT,TERM", "TERM,50ms,INT", "timeout"],
)
#: Seconds of the tests' slow work: longer than the gaps, so that the second signal comes during the stop.
SLOW = 0.5


def send(pid: int, signals: list[signal.Signals], gap: float) -> None:
    for number in signals:
        os.kill(pid, number)
        time.sleep(gap)


#: nsqd on a disk whose first sync is slow while a stop writes everything down.
SLOW_DISK = """
import os, sys, threading, time
sys.path.insert(0, {root!r})
from nsq.daemons.nsqd.__main__ import main

fsync = os.fsync

def slow(descriptor):
    if threading.current_thread().name == "nsqd-write-down":
        os.fsync = fsync
        time.sleep({seconds})
    fsync(descriptor)

os.fsync = slow
sys.exit(main())
"""


@pytest.fixture(params=[False, True], ids=["normal", "durable"])
def on_a_slow_disk(
    request: pytest.FixtureRequest, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> Callable[..., Nsqd]:
    """Return a function that starts an nsqd with messages in memory and deferred, on such a disk."""

    def start(seconds: float, *prefix: str) -> Nsqd:
        program, binary = tmp_path / "nsqd.py", tmp_path / "nsqd"
        program.write_text(SLOW_DISK.format(root=str(ROOT), seconds=seconds))
        binary.write_text(f'#!/bin/sh\nexec {" ".join(prefix)} "{sys.executable}" "{program}" "$@"\n')
        binary.chmod(0o755)
        durable = {"durable": True} if request.param else {}
        nsqd = nsqd_factory(binary=binary, mem_queue_size=100_000, **durable)
        for topic in ("first", "second"):
            nsqd.post(f"/topic/create?topic={topic}", b"")
            nsqd.post(f"/channel/create?topic={topic}&channel={CHANNEL}", b"")
            nsqd.post(f"/mpub?topic={topic}", b"\n".join(numbered(5_000)))
            nsqd.post(f"/pub?topic={topic}&defer=3600000", b"later")
        return nsqd

    return start


def status_of(nsqd: Nsqd) -> int:
    """Wait until the process has ended by itself, and return its exit status."""
    until("it has ended", lambda: not nsqd.running)
    return nsqd.terminate()


def kept(nsqd: Nsqd) -> int:
    nsqd.start()
    topics = stats(nsqd)["topics"]
    nsqd.kill()
    return sum(
        channel["depth"] + channel["deferred_count"] for topic in topics for channel in topic["channels"]
    )


@WAYS
def test_two_signals_at_once_let_nsqd_write_everything(
    prefix: list[str], signals: list[signal.Signals], gap: float, on_a_slow_disk: Callable[..., Nsqd]
) -> None:
    nsqd = on_a_slow_disk(SLOW, *prefix)
    send(nsqd.pid, signals, gap)
    assert status_of(nsqd) == 0
    assert kept(nsqd) == 10_002


def test_later_signals_only_end_the_wait_for_clients(on_a_slow_disk: Callable[..., Nsqd]) -> None:
    nsqd = on_a_slow_disk(3.0)
    send(nsqd.pid, [TERM, TERM], 1.2)
    send(nsqd.pid, [signal.SIGHUP, signal.SIGUSR1, INT], 0.0)
    assert status_of(nsqd) == 0
    assert "received SIGTERM again" in nsqd.log
    assert re.search(r"still writing 4 queues with \d+ messages in memory to disk, for \d", nsqd.log)
    assert kept(nsqd) == 10_002


# Programs that consume. Each works on 8 messages when it is asked to stop.

RUN = """
import os, sys, time, nsq

def work(message):
    time.sleep({slow})
    os.write(1, message.body + b"\\n")

consumer = nsq.Consumer({topic!r}, {channel!r}, nsqd=sys.argv[1], max_in_flight=8)
consumer.add_handler(work, threads=8)
sys.exit(0 if consumer.run() else 1)
"""
#: Its own signal handler stops the consumer; the second signal interrupts the first one's stop.
STOP = RUN.replace(
    "sys.exit(0 if consumer.run() else 1)",
    """
import signal
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: consumer.stop())
consumer.start().wait()
""",
)
WORK = """
import os, sys
sys.path[:0] = [os.getcwd(), {root!r}]
from nsq.tools.work import main
sys.exit(main(["app:consumer", "--processes=2", "--threads=8"]))
"""
TO_FILE = """
import os, sys, time
from nsq.tools.nsq_to_file import main

fsync = os.fsync

def slow(descriptor):
    time.sleep({slow})
    fsync(descriptor)

os.fsync = slow
flags = ["--topic={topic}", "--channel={channel}", "--nsqd-tcp-address", sys.argv[1], "--output-dir=out"]
sys.exit(main(flags))
"""


@contextmanager
def consuming(
    program: str, prefix: list[str], nsqd: Nsqd, directory: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the program with a copy of RUN beside it, until it works on all messages."""
    create(nsqd)
    publish(nsqd, numbered(8))
    values = {"slow": SLOW, "topic": TOPIC, "channel": CHANNEL, "root": str(ROOT)}
    app = RUN.format(**values).replace("sys.argv[1]", repr(nsqd.tcp_address)).rpartition("sys.exit")[0]
    (directory / "app.py").write_text(app)
    with (
        (directory / "done").open("wb") as done,
        subprocess.Popen(
            [*prefix, sys.executable, "-c", program.format(**values), nsqd.tcp_address],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=done,
            start_new_session=True,
        ) as process,
    ):
        try:
            until("busy", lambda: channel_of(nsqd)["in_flight_count"] == 8)
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@WAYS
@pytest.mark.parametrize(
    "program", [RUN, STOP, WORK, TO_FILE], ids=["Consumer.run", "Consumer.stop", "nsq work", "nsq_to_file"]
)
def test_two_signals_at_once_let_a_program_finish_its_messages(
    program: str, prefix: list[str], signals: list[signal.Signals], gap: float, nsqd: Nsqd, tmp_path: Path
) -> None:
    with consuming(program, prefix, nsqd, tmp_path) as process:
        send(process.pid, signals, gap)
        assert process.wait(60) == 0
    counts = channel_of(nsqd)
    assert (counts["depth"], counts["in_flight_count"], counts["requeue_count"]) == (0, 0, 0)
    written = (tmp_path / "done").read_bytes() + b"".join(
        each.read_bytes() for each in tmp_path.glob("out/*")
    )
    assert sorted(written.splitlines()) == numbered(8)


def test_a_signal_that_repeats_the_first_after_run_has_returned_does_not_kill_the_program(
    nsqd: Nsqd,
) -> None:
    create(nsqd)
    publish(nsqd, [b"only"])
    program = f"""
import os, signal, sys, time, nsq

consumer = nsq.Consumer({TOPIC!r}, {CHANNEL!r}, nsqd={nsqd.tcp_address!r})
consumer.add_handler(lambda message: os.kill(os.getpid(), signal.SIGTERM))
consumer.run()
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)
print("saved", flush=True)
time.sleep(1.1)
os.kill(os.getpid(), signal.SIGTERM)
print("never", flush=True)
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stdout) == (-TERM, "saved\n")


def test_a_second_signal_does_not_end_the_flush_of_a_producer_at_exit(nsqd_factory: Factory[Nsqd]) -> None:
    """gunicorn's worker has a handler that raises SystemExit; a Ctrl-C reaches it twice."""
    nsqd = nsqd_factory(process=True)
    create(nsqd)
    program = f"""
import os, signal, sys, threading, time, nsq

def end(*_):
    raise SystemExit(0)

def repeat_the_signal():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    os.kill({nsqd.pid}, signal.SIGCONT)

signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
producer = nsq.Producer({nsqd.tcp_address!r})
producer.publish({TOPIC!r}, b"first")
os.kill({nsqd.pid}, signal.SIGSTOP)
for number in range(1000):
    producer.publish_async({TOPIC!r}, bytes(20_000))  # more than the sockets' buffers hold
threading.Thread(target=repeat_the_signal, daemon=True).start()
os.kill(os.getpid(), signal.SIGTERM)
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert channel_of(nsqd)["depth"] == 1001
