"""Forked children: tells the owners of connections that these belong to the parent.

gunicorn, Celery and multiprocessing fork processes that hold connections. In the child the threads are gone,
and every inherited descriptor is still the parent's connection to nsqd: a byte or a shutdown from the child
would break the parent's stream.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from nsq.log import Logger


class Inherited(Protocol):
    def abandon(self) -> None:
        """Drop everything in the child, and send nothing to any peer. Must not take a lock of the parent's:
        the thread that held it does not exist here. May be called twice.
        """


log = Logger("nsq.connection")

_everyone: weakref.WeakSet[Inherited] = weakref.WeakSet()
_registered = False


def abandon_in_children(owner: Inherited) -> None:
    """Have ``owner.abandon()`` called in every child forked from now on, as long as ``owner`` lives."""
    global _registered
    _everyone.add(owner)
    if not _registered:
        # At first use: an import must not change how a program forks. If two threads come here at once,
        # children call every ``abandon`` twice.
        os.register_at_fork(after_in_child=_in_child)
        _registered = True


def _in_child() -> None:
    for owner in list(_everyone):
        try:
            owner.abandon()
        except Exception:
            # Go on: the child has inherited the other owners too.
            log.exception("%r of the parent process could not be let go of", owner)
