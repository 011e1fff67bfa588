"""Sets how often the programs of this package look for reference cycles."""

from __future__ import annotations

import gc


def calm_collector() -> None:
    """Look less often: a message makes no cycle, yet every one that waits is looked at.

    With the usual thresholds that took 45 % of nsqd's time under a pipelined MPUB, and 12 % of what a Spark
    receiver computes. Only a program does this: in another program's process the collector is that program's.

    The first two numbers multiplied are the objects that it looks at without a break: 400,000 take 20 ms.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 250)
