"""Who reads: the read loop, or a thread that waits for nothing but the next thing to be read.

Where one thread asks, waits and asks again, each answer would cost it a hand-over from the read loop, which
takes longer than everything else. So the read loop, having read such an answer, leaves the reading to the
thread that will wait for the next one, and comes back when nobody has made use of that for a while, or when
it is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

#: Seconds that the read loop stays away from a connection which nobody reads: so long a heartbeat may have to
#: wait. Also how long a borrower's read lasts before it looks at the clock.
LEASE = 0.02


class Lending:
    """``baton`` is held by whoever reads. Everything else is safe from any thread."""

    def __init__(self) -> None:
        self.baton = threading.Lock()
        self._lent = False
        self._recalled = threading.Event()
        self._uses = 0

    def lend(self, worthwhile: Callable[[], bool]) -> None:
        """For the read loop, without the baton: return when it is to read again."""
        self._recalled.clear()
        self._lent = True
        # Asked only now: who sends something meanwhile either is seen here or sees that it has to call us.
        if worthwhile():
            used = -1
            while used != self._uses:
                used = self._uses
                if self._recalled.wait(LEASE):
                    break
        self._lent = False

    def recall(self) -> None:
        """Somebody waits for what is to be read, and will not read it."""
        if self._lent:
            self._recalled.set()

    def borrow(self) -> bool:
        """Take the baton, if the read loop has left it and nobody else has it."""
        return self._lent and self.baton.acquire(False)

    def give_back(self) -> None:
        self._uses += 1
        self.baton.release()
