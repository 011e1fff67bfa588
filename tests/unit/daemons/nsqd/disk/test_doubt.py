from __future__ import annotations

import pytest

from nsq.daemons.nsqd.disk.doubt import Doubt

FAULT = OSError(5, "Input/output error")


def test_without_a_fault_there_is_no_doubt() -> None:
    doubt = Doubt()
    doubt.check()()


def test_a_job_made_afterwards_fails_once() -> None:
    doubt = Doubt()
    doubt.arose(FAULT)
    with pytest.raises(OSError, match="Input/output"):
        doubt.check()()
    doubt.check()()


def test_a_job_that_is_never_called_settles_nothing() -> None:
    doubt = Doubt()
    doubt.arose(FAULT)
    doubt.check()
    with pytest.raises(OSError, match="Input/output"):
        doubt.check()()


def test_a_job_under_way_fails_and_so_does_the_next() -> None:
    """The first may not cover all that was written before the fault."""
    doubt = Doubt()
    check = doubt.check()
    doubt.arose(FAULT)
    with pytest.raises(OSError, match="Input/output"):
        check()
    with pytest.raises(OSError, match="Input/output"):
        doubt.check()()
    doubt.check()()


def test_a_second_fault_is_told_as_well() -> None:
    doubt = Doubt()
    doubt.arose(FAULT)
    check = doubt.check()
    with pytest.raises(OSError, match="Input/output"):
        check()
    doubt.arose(OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space"):
        doubt.check()()
    doubt.check()()
