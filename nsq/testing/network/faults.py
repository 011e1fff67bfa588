"""Faults of a network as values, and the verbs that inflict them. Pure.

Momentary faults hit the existing connections:

cut         both ends see the other one close
reset       both ends see a reset (RST)
half-close  the end ``towards`` sees the other one half-close; the other direction goes on
half-open   the end ``towards`` sees a reset; the other end sees nothing and gets no replies
corrupt     ``amount`` bits of the next bytes are flipped
truncate    after ``amount`` more bytes the connection is cut

Standing faults last for ``seconds``, and also hit connections that begin meanwhile:

stall       no bytes move
delay       every byte takes ``amount`` seconds longer
throttle    ``amount`` bytes a second get through

Faults of a link's listener, for ``seconds`` too; existing connections go on:

refuse      connections are refused
ignore      the system accepts connections, but they are never served
swallow     the system does not respond to a dial
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from nsq.errors import UsageError

CLIENT, SERVER, BOTH = "client", "server", "both"

MOMENTARY = ("cut", "reset", "half-close", "half-open", "corrupt", "truncate")
STANDING = ("stall", "delay", "throttle")
LISTENING = ("refuse", "ignore", "swallow")
HEAL = "heal"
KINDS = (*MOMENTARY, *STANDING, *LISTENING)
_ONE_SIDED = ("half-close", "half-open")


@dataclass(frozen=True)
class Fault:
    """One fault: of ``KINDS``, or ``heal``. ``towards`` is the end that a fault of one direction hits."""

    kind: str
    towards: str = BOTH
    seconds: float = math.inf
    amount: float = 0.0

    @property
    def directions(self) -> tuple[str, ...]:
        return (CLIENT, SERVER) if self.towards == BOTH else (self.towards,)


def checked(fault: Fault, *, listening: bool = True) -> Fault:
    """Return the fault; UsageError if it is invalid. ``listening``: faults of listeners are valid too."""
    if fault.kind not in (*KINDS, HEAL):
        close = difflib.get_close_matches(fault.kind, KINDS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(KINDS)}"
        raise UsageError(f"no fault is called {fault.kind!r}{hint}")
    if fault.kind in LISTENING and not listening:
        raise UsageError(f"{fault.kind} is a fault of a link, not of one connection")
    if fault.towards not in (CLIENT, SERVER, BOTH) or (fault.kind in _ONE_SIDED and fault.towards == BOTH):
        ends = "'client' or 'server'" if fault.kind in _ONE_SIDED else "'client', 'server' or 'both'"
        raise UsageError(f"{fault.kind} towards {fault.towards!r}; it must be {ends}")
    if not fault.seconds > 0:
        raise UsageError(f"{fault.kind} for {fault.seconds} seconds; it must be more than 0")
    if not 0 <= fault.amount < math.inf or (fault.kind == "throttle" and not fault.amount):
        least = "more than 0" if fault.kind == "throttle" else "0 or more"
        raise UsageError(f"{fault.kind} by {fault.amount}; it must be {least}")
    return fault


class Verbs:
    """The faults of connections as methods, for Connection, Link and Network."""

    def inflict(self, fault: Fault) -> int:
        """Inflict the fault; return how many connections it hits."""
        raise TypeError(f"{type(self).__name__} inflicts nothing")

    def cut(self) -> int:
        """Close both ends. Bytes under way are lost."""
        return self.inflict(Fault("cut"))

    def reset(self) -> int:
        """Reset both ends (RST)."""
        return self.inflict(Fault("reset"))

    def half_close(self, towards: str = CLIENT) -> int:
        """Half-close towards this end, which can still send."""
        return self.inflict(Fault("half-close", towards))

    def half_open(self, towards: str = SERVER) -> int:
        """Reset this end without closing the other one, whose bytes are then discarded."""
        return self.inflict(Fault("half-open", towards))

    def stall(self, seconds: float = math.inf, towards: str = BOTH) -> int:
        """Move no bytes for ``seconds``, or until ``heal``."""
        return self.inflict(Fault("stall", towards, seconds))

    def delay(self, by: float, seconds: float = math.inf, towards: str = BOTH) -> int:
        """Delay every byte ``by`` seconds."""
        return self.inflict(Fault("delay", towards, seconds, by))

    def throttle(self, bytes_per_second: float, seconds: float = math.inf, towards: str = BOTH) -> int:
        return self.inflict(Fault("throttle", towards, seconds, bytes_per_second))

    def corrupt(self, bits: int = 1, towards: str = BOTH) -> int:
        """Flip ``bits`` bits of the next bytes that pass."""
        return self.inflict(Fault("corrupt", towards, amount=bits))

    def truncate(self, after: int = 0, towards: str = BOTH) -> int:
        """Cut the connection after ``after`` more bytes."""
        return self.inflict(Fault("truncate", towards, amount=after))

    def heal(self) -> int:
        """End all faults. Closed connections stay closed."""
        return self.inflict(Fault(HEAL))


class ListenerVerbs(Verbs):
    """The faults of connections and listeners as methods, for Link and Network."""

    def refuse(self, seconds: float = math.inf) -> int:
        """Refuse connections for ``seconds``, or until ``heal``."""
        return self.inflict(Fault("refuse", seconds=seconds))

    def ignore(self, seconds: float = math.inf) -> int:
        """Let clients connect, but never serve them."""
        return self.inflict(Fault("ignore", seconds=seconds))

    def swallow(self, seconds: float = math.inf) -> int:
        """Do not respond to dials, as far as one process can do that: the listener's queue is full."""
        return self.inflict(Fault("swallow", seconds=seconds))
