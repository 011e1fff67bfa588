"""A signal that comes while a program still imports its modules: each test starts the real entry point.

Before its first line a program cannot do anything about signals, so there is no test of that.
"""

from __future__ import annotations

import configparser
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.judged import only_ours
from tests.integration.running_tools import ROOT

pytestmark = only_ours("they have entry points in Python")

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

#: Runs an entry point as pip's script does. The import of one module waits for stdin.
SCRIPT = """
import sys

class Waiting:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            sys.stdout.write("importing\\n")
            sys.stdout.flush()
            sys.stdin.readline()

sys.meta_path.insert(0, Waiting())
sys.argv[0] = {program!r}
from {place} import {function} as main
sys.exit(main())
"""

SOURCE = ["--topic=orders", "--nsqd-tcp-address=127.0.0.1:1"]
#: Programs that end with status 0 after a signal, and arguments with which they would run.
TOOLS = {
    "nsq_tail": SOURCE,
    "nsq_stat": ["--topic=orders", "--channel=billing", "--nsqd-http-address=127.0.0.1:1"],
    "to_nsq": SOURCE,
    "nsq_to_file": [*SOURCE, "--output-dir=out"],
    "nsq_to_http": [*SOURCE, "--post=http://127.0.0.1:1"],
    "nsq_to_nsq": [*SOURCE, "--destination-nsqd-tcp-address=127.0.0.1:1"],
    "nsq_pubsub": ["--http-address=127.0.0.1:0", "--nsqd-tcp-address=127.0.0.1:1"],
}
#: Programs that end with status 130 or 143 when a signal comes before their command has begun.
COMMANDS = {"nsq": ["topics"], "nsq-spark": ["wal", "ls", "out"]}
DAEMONS = {
    "nsqd": ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"],
    "nsqlookupd": ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"],
    "nsqadmin": ["--http-address=127.0.0.1:0", "--nsqd-http-address=127.0.0.1:1"],
}


def entry_points() -> dict[str, str]:
    """Return ``module:function`` for every program that pip installs."""
    setup = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = setup["options.entry_points"]["console_scripts"].strip().splitlines()
    return {name.strip(): place.strip() for name, _, place in (line.partition("=") for line in lines)}


def ended(
    source: str, arguments: list[str], signals: list[signal.Signals], cwd: Path
) -> tuple[int, str, str]:
    """Send the signals while the program imports, and return its exit status, stdout and stderr."""
    with subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        for number in signals:
            process.send_signal(number)
        out, log = process.communicate("\n", timeout=100)
    return process.returncode, out, log


def test_every_program_is_in_the_tables() -> None:
    assert entry_points().keys() == {*TOOLS, *COMMANDS, *DAEMONS}


@pytest.mark.parametrize(("number", "module"), [(TERM, "nsq"), (INT, "nsq.flags")], ids=["early", "late"])
@pytest.mark.parametrize("program", [*TOOLS, *COMMANDS])
def test_a_signal_during_the_imports_ends_a_program_silently(
    program: str, module: str, number: signal.Signals, tmp_path: Path
) -> None:
    place, _, function = entry_points()[program].partition(":")
    source = SCRIPT.format(module=module, program=program, place=place, function=function)
    arguments = {**TOOLS, **COMMANDS}[program]
    status = 0 if program in TOOLS else 128 + number
    assert ended(source, arguments, [number], tmp_path) == (status, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["nsq", "asyncio"])
@pytest.mark.parametrize("program", DAEMONS)
def test_signals_during_the_imports_of_a_daemon_wait_for_its_start(
    program: str, module: str, tmp_path: Path
) -> None:
    place, _, function = entry_points()[program].partition(":")
    source = SCRIPT.format(module=module, program=program, place=place, function=function)
    status, _, log = ended(source, DAEMONS[program], [HUP, TERM], tmp_path)
    assert status == 0, log
    assert "received SIGTERM, stopping" in log


def test_a_sighup_during_the_imports_does_not_end_nsq_to_file(tmp_path: Path) -> None:
    """It opens its files again at a SIGHUP: logrotate sends it one at any time."""
    source = SCRIPT.format(
        module="nsq.flags", program="nsq_to_file", place="nsq_command", function="nsq_to_file"
    )
    arguments = [*TOOLS["nsq_to_file"], "--topic=not a topic"]
    assert ended(source, arguments, [HUP], tmp_path)[0] == 1
