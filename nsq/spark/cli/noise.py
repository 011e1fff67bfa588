"""Keeps Java's chatter off the terminal. The JVM, and the Python processes it starts, write where our stderr
pointed when it was started: here, a pipe whose reader passes on what is worth it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator

#: What every start of Spark says, what our own processes say for a log file, and where Java failed.
_CHATTER = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j|Setting default log level"
    r"|To adjust logging level|Warning: Java versions > Java 11 can only"
    r"|.* WARN NativeCodeLoader: |.* WARN Utils: (Your hostname|Set SPARK_LOCAL_IP)"
    r"|.* INFO nsq\.|\s+at [\w.$]+\(|\s+\.\.\. [0-9]+ more$|\s*$"
)


def worth_telling(line: str) -> bool:
    return _CHATTER.match(line) is None


@contextlib.contextmanager
def filtered(tell: Callable[[str], None]) -> Iterator[None]:
    """What programs started inside the block write to stderr goes to ``tell``, line by line, as long as they
    run. What this process writes goes where it always went, except inside the block.
    """
    reading, writing = os.pipe()
    own = os.dup(2)
    threading.Thread(target=_pass_on, args=(reading, tell), name="nsq-spark-stderr", daemon=True).start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def _pass_on(reading: int, tell: Callable[[str], None]) -> None:
    with open(reading, errors="replace") as lines:
        for line in lines:
            if worth_telling(line):
                tell(line.rstrip("\n"))
