"""The program ``nsq-spark``: parses a command line, runs the command, and reports errors in a line."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence

import nsq.flags as flags
from nsq import __version__
from nsq.errors import NsqError, how_to_install
from nsq.flags import FlagExit
from nsq.spark.commands import COMMANDS, Command, SparkCommand
from nsq.threads.stop_signals import held_stop, release_signals

_HELP = """\
Usage: nsq-spark COMMAND [arguments and flags]

NSQ and Spark: archive a topic, count it, replay it.

{}

`nsq-spark COMMAND --help` says more. PLACE is a directory, or s3://bucket/folder.
"""
#: Aliases of flags: short ones, and the names that other NSQ tools use.
_SPELLINGS = {
    "-o": "--option",
    "-q": "--quiet",
    "-n": "--n",
    "--nsqd-tcp-address": "--nsqd",
    "--lookupd-http-address": "--lookupd",
}
#: The last line of a Python traceback with one of our errors, inside an error of Spark's.
_OURS = re.compile(r"^nsq\.errors\.\w+: (.+)$", re.MULTILINE)
#: The error of Java inside one of Py4J's, and its causes.
_JAVA = re.compile(r"^(?:Caused by)?: ([\w.$]+)(?:: (.*))?$", re.MULTILINE)


def parse(argv: Sequence[str]) -> Command:
    """Parse a command and its flags. Raises FlagExit for --help, --version and mistakes."""
    words = list(argv)
    if words[:1] == ["--debug"]:
        words = words[1:] + words[:1]
    if words[:1] == ["--version"]:
        raise FlagExit(0, f"nsq-spark v{__version__}\n")
    if not words or words in (["wal", "-h"], ["wal", "--help"]) or words[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<12}{each.__doc__}" for name, each in COMMANDS.items())
        raise FlagExit(0 if words else 2, _HELP.format(listed))
    name = " ".join(words[:2]) if words[0] == "wal" else words[0]
    command = COMMANDS.get(name)
    if command is None:
        raise FlagExit(2, f"nsq-spark has no command {name!r}; there are {', '.join(COMMANDS)}\n")
    prog, given = f"nsq-spark {name}", []
    for word in words[len(name.split()) :]:
        spelt, equals, value = word.partition("=")
        given.append(_SPELLINGS.get(spelt, spelt) + equals + value)
    synopsis = f"{command.takes}\n{command.__doc__}"
    options, arguments = flags.parse_command(command, given, prog=prog, synopsis=synopsis)
    for needed in command.needs:
        if not getattr(options, needed):
            raise FlagExit(2, f"--{needed} is missing\n{prog} --help says more\n")
    return dataclasses.replace(options, argument="".join(arguments), argv=tuple(argv))


def main(argv: Sequence[str] | None = None) -> int:
    try:
        command = parse(sys.argv[1:] if argv is None else argv)
    except FlagExit as end:
        print(end.text, end="", file=sys.stdout if end.stream == "stdout" else sys.stderr)
        return end.status
    level = logging.INFO if command.debug else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if number := held_stop():  # nothing has begun
        return 128 + number
    try:
        release_signals()
        if isinstance(command, SparkCommand) and command.print_submit:
            print(command.submit_line())
            return 0
        status = command.run()
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        print("interrupted; what was finished is kept, and the next run goes on from there", file=sys.stderr)
        return 128 + int(interrupt.args[0] if interrupt.args else signal.SIGINT)
    except BrokenPipeError:
        # `nsq-spark wal ls … | head` has closed the pipe: keep Python from reporting that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if command.debug:
            raise
        print(f"nsq-spark: {in_a_line(error)}", file=sys.stderr)
        return 1
    return status or 0


def in_a_line(error: Exception) -> str:
    """An error in one line: our own message, even inside an error of Spark's; else type and first line."""
    first = str(error).strip().split("\n", 1)[0]
    if isinstance(error, NsqError):
        return str(error)
    ours = _OURS.search(str(error))
    if ours is not None:
        return ours[1].strip()
    if first.startswith("An error occurred while calling") and (causes := _JAVA.findall(str(error))):
        kind, reason = causes[-1]
        return f"{kind.rpartition('.')[2]}: {reason or 'no reason given'} (--debug shows where)"
    if isinstance(error, ImportError):
        return f"{first}: {how_to_install('spark')}"
    return f"{type(error).__name__}: {first} (--debug shows where)"
