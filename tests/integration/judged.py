"""Which daemons the tests judge: ours, or the binaries that NSQ_BIN_DIR names."""

from __future__ import annotations

import pytest

from nsq.testing.daemons.process import our_program
from nsq.testing.plugin import external_binary
from tests.golden.recordings import others_are_judged

#: Seconds by which something may come later than promised: a busy machine can hold up either of the two. Go's
#: also looks ten times a second for what is due, at a new channel for the first time after up to five.
LATE = 10.0


def only_ours(reason: str) -> pytest.MarkDecorator:
    """For a promise that Go's daemons do not make."""
    return pytest.mark.skipif(others_are_judged(), reason=f"a promise of our daemons alone: {reason}")


def command(program: str) -> list[str]:
    """How to run the program that is judged."""
    binary = external_binary(program)
    return our_program(program) if binary is None else [str(binary)]
