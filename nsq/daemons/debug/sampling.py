"""A sampling profile of one thread, taken by another.

The other gets its look when the interpreter hands over: at a system call, or within a tenth of a millisecond.
So what takes longer than that is seen in its true proportion, and of what is shorter its system calls.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from nsq.daemons.debug.stacks import stack

_INTERVAL = 0.005
#: Seconds until the interpreter hands over while sampling. Usually it is 5 ms, as good as never.
_SWITCH_INTERVAL = 0.00005

#: Functions as ``module:name``, outermost first.
Stack = tuple[str, ...]


@dataclass
class Profile:
    """How often which stack was seen."""

    seconds: float = 0.0
    stacks: Counter[Stack] = field(default_factory=Counter)

    def collapsed(self) -> str:
        """One line for every stack, as flame graph programs read them."""
        return "".join(f"{';'.join(names)} {count}\n" for names, count in sorted(self.stacks.items()))

    def table(self) -> str:
        """Functions by how often they themselves were running, and how often anything they called."""
        own: Counter[str] = Counter()
        total: Counter[str] = Counter()
        for names, count in self.stacks.items():
            own[names[-1]] += count
            for name in set(names):
                total[name] += count
        samples = self.stacks.total()
        lines = [f"{samples} samples in {self.seconds:.1f}s", "", "   own%  total%  function"]
        lines += [
            f"{100 * own[name] / samples:7.1f} {100 * total[name] / samples:7.1f}  {name}"
            for name in sorted(total, key=lambda name: (-own[name], -total[name], name))
        ]
        return "\n".join(lines) + "\n"


def sample(
    thread: int,
    seconds: float,
    enough: threading.Event,
    *,
    now: Callable[[], float] = time.monotonic,
) -> Profile:
    """Look at the thread for so long, or until there is ``enough``. Its own work goes on meanwhile."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        return _sample(thread, seconds, enough, now)
    finally:
        sys.setswitchinterval(usual)


def _sample(thread: int, seconds: float, enough: threading.Event, now: Callable[[], float]) -> Profile:
    profile = Profile()
    began = now()
    while not enough.wait(_INTERVAL) and profile.seconds < seconds:
        profile.seconds = now() - began
        frames = stack(sys._current_frames().get(thread))
        if not frames:
            break
        names = (
            f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}" for frame in reversed(frames)
        )
        profile.stacks[tuple(names)] += 1
    return profile
