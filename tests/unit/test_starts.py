"""What each entry point imports, as ``starts.txt`` lists it: a program that loads more starts later.

After a change that is meant: ``python -m tests.unit.test_starts > tests/unit/starts.txt``. Programs run with
--help; the daemons' modules, which they import after that, are listed too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fakes.programs import run_python

LIST = Path(__file__).with_name("starts.txt")

TOOLS = ("nsq_tail", "nsq_stat", "to_nsq", "nsq_to_file", "nsq_to_http", "nsq_to_nsq", "nsq_pubsub")
COMMANDS = ("up", "pub", "top", "topics", "peek", "redrive", "doctor", "bench", "work", "completion")
DAEMONS = ("nsqd", "nsqlookupd", "nsqadmin")

PROGRAMS = {"nsq --help": "nsq_command.main(['--help'])"}
PROGRAMS |= {f"nsq {each} --help": f"nsq_command.main([{each!r}, '--help'])" for each in COMMANDS}
PROGRAMS |= {f"{each} --help": f"nsq_command.{each}(['--help'])" for each in (*TOOLS, *DAEMONS)}
PROGRAMS["nsq-spark --help"] = "nsq_command.nsq_spark(['--help'])"
PROGRAMS |= {
    f"{each}'s modules": f"import nsq.daemons.serve.process, nsq.daemons.{each}.daemon" for each in DAEMONS
}

#: What takes long to import, and comes only where our code asks for it.
HEAVY = {"asyncio", "curses", "http.server", "socket", "ssl", "tomllib", "tracemalloc"}
HEAVY |= {"aiohttp", "certifi", "pyarrow", "pyspark", "snappy", "uvloop"}


def imported(program: str) -> str:
    """Return what a program imports, a line for each part of nsq."""
    source = f"""
import sys, nsq_command
try:
    {program}
except SystemExit:
    pass
sys.stdout.write("\\n" + " ".join(sys.modules))
"""
    done = run_python("-W", "ignore", "-c", source)
    modules = done.stdout.rpartition("\n")[2].split()
    parts: dict[str, set[str]] = {}
    for module in modules:
        part, _, name = module.rpartition(".")
        if part == "nsq" or part.startswith("nsq."):
            parts.setdefault(part, set()).add(name)
    lines = [f"{part}: {' '.join(sorted(names))}" for part, names in sorted(parts.items())]
    return "\n".join([*lines, f"heavy: {' '.join(sorted(HEAVY.intersection(modules)))}".strip()])


def listed() -> dict[str, str]:
    sections = LIST.read_text("utf-8").split("\n\n")
    return {title: rest.strip() for title, _, rest in (each.partition("\n") for each in sections)}


def test_every_entry_point_is_in_the_list() -> None:
    assert list(listed()) == list(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_entry_point_imports_what_the_list_says(name: str) -> None:
    assert imported(PROGRAMS[name]).splitlines() == listed()[name].splitlines()


if __name__ == "__main__":
    sys.stdout.write("\n\n".join(f"{name}\n{imported(program)}" for name, program in PROGRAMS.items()) + "\n")
