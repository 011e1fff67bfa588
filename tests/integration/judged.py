"""Chooses the daemons under test: ours, or those in NSQ_BIN_DIR."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from nsq.testing.daemons.process import our_program
from nsq.testing.plugin import external_binary
from tests.golden.recordings import others_are_judged

#: Tolerance in seconds for late events on a busy machine. Go's nsqd also checks for due messages only ten
#: times a second, and in a new channel first after up to five seconds.
LATE = 10.0


def only_ours(reason: str) -> pytest.MarkDecorator:
    """Mark a test of a feature that Go's daemons do not have."""
    return pytest.mark.skipif(others_are_judged(), reason=f"a promise of our daemons alone: {reason}")


def command(program: str) -> list[str]:
    """Return the command of the tested program."""
    binary = external_binary(program)
    return our_program(program) if binary is None else [str(binary)]


ANY_PORTS = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")


def run(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the tested program, which is to end by itself."""
    return subprocess.run(
        [*command(program), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
