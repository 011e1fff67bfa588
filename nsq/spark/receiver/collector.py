"""How often a receiver's process looks for reference cycles."""

from __future__ import annotations

import gc

#: Objects more than there were at the last look: several times what is in flight, usually.
_OFTEN_ENOUGH = 20_000


def calm_collector() -> None:
    """Look less often: a message makes no cycle, yet every one that waits is looked at.

    With the usual threshold of 700 that was 12 % of what a receiver computed. Only a program does this: in
    somebody else's process the collector is theirs.
    """
    gc.set_threshold(_OFTEN_ENOUGH)
