"""What of a program's chatter reaches the terminal."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading

import pytest

from nsq.spark.cli import CHATTER, filtered


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: Using incubator modules: jdk.incubator.vector\n",
        'Setting default log level to "WARN".\n',
        "26/11/20 12:05:57 WARN NativeCodeLoader: Unable to load native-hadoop library\n",
        "2026-11-20 12:06:05,433 INFO nsq.spark.receiver: receiver x receives\n",
        "\tat org.apache.spark.sql.execution.StreamExecution$$anon$1.run(StreamExecution.scala:236)\n",
        "\t... 23 more\n",
        "\n",
    ],
)
def test_chatter(line: str) -> None:
    assert CHATTER.match(line)


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-20 12:06:05,433 WARNING nsq.spark.source: the backlog is unknown\n",
        "26/11/20 12:05:57 ERROR Executor: Exception in task 0.0\n",
        "Caused by: java.io.IOException: No space left on device\n",
        "  at least two of them\n",
    ],
)
def test_what_matters(line: str) -> None:
    assert not CHATTER.match(line)


def test_programs_of_the_block_are_heard_after_it_too() -> None:
    told: queue.Queue[str] = queue.Queue()
    code = "import sys; sys.stdin.read(); print('disk full', file=sys.stderr)"
    with filtered(told.put):
        program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    program.communicate(b"", timeout=200)
    assert told.get(timeout=200) == "disk full"
    for thread in threading.enumerate():
        if thread.name == "nsq-spark-stderr":
            thread.join(200)
