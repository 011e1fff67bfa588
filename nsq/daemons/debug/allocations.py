"""What was allocated within some seconds and is still held, by line of code."""

from __future__ import annotations

import threading
import tracemalloc


def trace(seconds: float, limit: int, enough: threading.Event) -> str:
    """Trace for so long, or until there is ``enough``; only for that time are allocations slower."""
    traced_before = tracemalloc.is_tracing()
    if not traced_before:
        tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        enough.wait(seconds)
        after = tracemalloc.take_snapshot()
    finally:
        if not traced_before:
            tracemalloc.stop()
    ours = tracemalloc.Filter(False, tracemalloc.__file__)
    grown = [
        line
        for line in after.filter_traces([ours]).compare_to(before.filter_traces([ours]), "lineno")
        if line.size_diff > 0
    ]
    lines = [f"held now that was not held {seconds:g}s ago", "", "      bytes    blocks  line"]
    for line in grown[:limit]:
        where = line.traceback[0]
        lines.append(f"{line.size_diff:11} {line.count_diff:9}  {where.filename}:{where.lineno}")
    if len(grown) > limit:
        rest = sum(line.size_diff for line in grown[limit:])
        lines.append(f"{rest:11}            {len(grown) - limit} other lines")
    return "\n".join(lines) + "\n"
