"""When a receiver that died is started again, and when there is no use in that. Pure."""

from __future__ import annotations

#: Seconds of work after which a death is bad luck, and pauses begin anew.
STEADY = 10.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
#: So many processes in a row that ended before they said anything at all, and the next one would too.
MOST_STILLBORN = 5


class Restarts:
    """Of one receiver after the other in the same place."""

    def __init__(self) -> None:
        self._failures = 0
        self._stillborn = 0

    def pause(self, lived: float, *, ready: bool, explained: bool) -> float | None:
        """Seconds until the next one is started; None when it is no use.

        ``lived`` are the seconds it worked; ``ready``: it got that far; ``explained``: it said what it died
        of, and that this may pass.
        """
        if ready and lived >= STEADY:
            self._failures = 0
        self._stillborn = 0 if ready or explained else self._stillborn + 1
        if self._stillborn >= MOST_STILLBORN:
            return None
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 62))
        self._failures += 1
        return pause
