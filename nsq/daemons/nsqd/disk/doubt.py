"""A sync that failed outside a round: nobody who waits for that file may be told that it is on disk."""

from __future__ import annotations

from collections.abc import Callable

Check = Callable[[], None]


class Doubt:
    """A file is synced before it is closed early. When that fails, the system has told of it and will not
    tell again: the next sync of the file works, whatever was lost. So the fault is kept until a round has
    failed with it that began afterwards, and answered all who had written before.
    """

    def __init__(self) -> None:
        self._fault: OSError | None = None
        self._told = False

    def arose(self, fault: OSError) -> None:
        self._fault, self._told = fault, False

    def check(self) -> Check:
        """For a job that is made now. What is returned may be called in any thread; it raises the fault."""
        if self._told:
            self._fault, self._told = None, False
        known = self._fault

        def insist() -> None:
            fault = self._fault
            if fault is None:
                return
            if fault is known:
                self._told = True
            raise OSError(fault.errno, fault.strerror) from fault

        return insist
