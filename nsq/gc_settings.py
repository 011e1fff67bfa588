"""Sets how often the programs of this package look for reference cycles."""

from __future__ import annotations

import gc


def tune_gc() -> None:
    """Make the collector run less often: messages make no cycles, yet it visits every waiting message.

    With the default thresholds that took 45 % of nsqd's time under a pipelined MPUB, and 12 % of a Spark
    receiver's. Only our programs call this: a library must not change its host's collector.

    The product of the first two numbers is how many objects one collection visits: 400,000 take 20 ms.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 250)
