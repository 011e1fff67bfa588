"""Chooses the daemons under test: ours, or those in NSQ_BIN_DIR."""

from __future__ import annotations

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
