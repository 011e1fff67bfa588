"""Names to socket addresses, within a deadline.

The C library's lookup can take half a minute and cannot be interrupted, so it runs in a thread of its own.
A caller whose time is up leaves it there; whoever asks for the same name meanwhile waits for the same
thread, so there is never more than one for a name. Addresses written in digits need no lookup and no
thread.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from . import addresses


class Target(NamedTuple):
    """One socket address a name stands for."""

    family: int
    protocol: int
    address: tuple[Any, ...]

    @property
    def words(self) -> str:
        return addresses.join(str(self.address[0]), int(self.address[1]))


Lookup = Callable[[str, int], list[Target]]

_INTERRUPTED = "the lookup of the name was interrupted"


def look_up(host: str, port: int) -> list[Target]:
    """Blocks as long as the C library likes; OSError or UnicodeError when the name is none."""
    return _targets(socket.getaddrinfo(_codecless(host), port, type=socket.SOCK_STREAM))


def literal(host: str, port: int) -> list[Target]:
    """The one target of an address in digits, none for a name; never asks anybody."""
    try:
        found = socket.getaddrinfo(
            _codecless(host), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        return _targets(found)
    except (OSError, UnicodeError):
        return []


def _codecless(host: str) -> str | bytes:
    """For text Python imports the idna codec, at its first use. A child that is forked while another thread
    does that has half a codec: for as long as it lives, no lookup would succeed."""
    return host.encode("ascii") if host.isascii() else host


def _targets(found: list[Any]) -> list[Target]:
    targets = (Target(family, protocol, address) for family, _, protocol, _, address in found)
    return list(dict.fromkeys(targets))


class _Asked:
    """A lookup that is under way."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.targets: list[Target] = []
        self.failure: OSError | UnicodeError | None = None


class Resolver:
    """Looks names up in threads, at most one for each name at a time."""

    def __init__(self, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._interrupted = False
        # By name, port and process: the thread of a lookup that was under way at a fork is not in the child.
        self._under_way: dict[tuple[str, int, int], _Asked] = {}

    def resolve(self, host: str, port: int, timeout: float) -> list[Target]:
        """At least one target; OSError (TimeoutError, too) or UnicodeError otherwise."""
        targets = literal(host, port)
        if targets:
            return targets
        key = (host, port, os.getpid())
        fresh = _Asked()
        # Atomic, and no lock that a fork could leave held.
        asked = self._under_way.setdefault(key, fresh)
        if asked is fresh:
            self._start(key, fresh)
        if self._interrupted:
            raise OSError(_INTERRUPTED)
        if not asked.done.wait(min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
            raise TimeoutError(f"the name was not resolved within {timeout:.3g} s")
        if asked.failure is not None:
            raise asked.failure
        return asked.targets

    def interrupt(self) -> None:
        """Have nobody wait any more, now or later. The threads end when the C library lets them."""
        self._interrupted = True
        for asked in list(self._under_way.values()):
            asked.failure = OSError(_INTERRUPTED)
            asked.done.set()

    def _start(self, key: tuple[str, int, int], asked: _Asked) -> None:
        # A daemon thread, the only one there is: it can neither be told to stop nor be waited for, and must
        # not keep a program from ending.
        thread = threading.Thread(
            target=self._ask, args=(key, asked), name=f"nsq-resolve-{key[0]}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending
            self._ask(key, asked)

    def _ask(self, key: tuple[str, int, int], asked: _Asked) -> None:
        try:
            asked.targets = self._lookup(key[0], key[1])
            if not asked.targets:
                asked.failure = OSError("the name has no address")
        except (OSError, UnicodeError) as error:
            asked.failure = error
        finally:
            self._finish(key, asked)

    def _finish(self, key: tuple[str, int, int], asked: _Asked) -> None:
        # Forgotten first: who comes after this asks anew, and who came before has the object.
        self._under_way.pop(key, None)
        asked.done.set()
