"""Calls in forked children."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 60


def in_child(call: Callable[[], object]) -> int:
    """Make a call in a forked child; return the child's exit status: 0 when the call returned."""
    return os.waitstatus_to_exitcode(os.waitpid(_fork(call), 0)[1])


@contextmanager
def forked(call: Callable[[], object]) -> Iterator[None]:
    """Make a call in a forked child during the block; it must return."""
    child = _fork(call)
    yield
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child failed, see its traceback"


def _fork(call: Callable[[], object]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on, where a process has threads
        child = os.fork()
    if not child:
        status = 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)  # a child that hangs must not outlive the test
        try:
            call()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child
