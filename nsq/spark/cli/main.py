"""``nsq-spark``: reads the command line, runs the command, says in a line what went wrong."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Sequence

from nsq.errors import NsqError
from nsq.spark.cli import arguments

INTERRUPTED = 130
#: What Python writes below a traceback, which Spark tells whole.
_OURS = re.compile(r"^nsq\.errors\.\w+: (.+)$", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    # What --help and --version need is loaded in a blink; Spark is not.
    from nsq.spark.cli import commands

    options = arguments.parser(commands).parse_args(words)
    options.words = words
    _set_up_logging(options)
    try:
        run = commands.print_submit if getattr(options, "print_submit", False) else options.run
        status: int = run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept, and the next run goes on from there", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # `nsq-spark wal ls … | head`: nobody wants the rest, and Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if options.debug:
            raise
        print(f"nsq-spark: {in_a_line(error)}", file=sys.stderr)
        return 1
    return status


def in_a_line(fault: Exception) -> str:
    """Ours are made to be read, also where one is the reason of Spark's; of others the kind is told too, and
    of Java's long stories the first line.
    """
    first = str(fault).strip().split("\n", 1)[0]
    if isinstance(fault, NsqError):
        return str(fault)
    ours = _OURS.search(str(fault))
    if ours is not None:
        return ours[1].strip()
    if isinstance(fault, ImportError):
        return f"{first}: pip install 'nsq[spark]'"
    return f"{type(fault).__name__}: {first} (--debug shows where)"


def _set_up_logging(options: argparse.Namespace) -> None:
    level = logging.INFO if options.debug else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
