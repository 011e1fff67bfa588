"""Forked children: what uses connections is told that they are the parent's.

gunicorn, Celery and multiprocessing fork processes that hold connections. In the child the threads are gone
and every inherited descriptor still leads to the parent's nsqd; a byte or a shutdown from there would break
the parent's stream.
"""

from __future__ import annotations

import logging
import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    def abandon(self) -> None:
        """Let go of everything in the child, without a word to any peer. No lock of the parent's may be
        taken: the thread that held it does not exist here. May be called twice.
        """


log = logging.getLogger("nsq.connection")

_everyone: weakref.WeakSet[Inherited] = weakref.WeakSet()
_registered = False


def abandon_in_children(owner: Inherited) -> None:
    """Have ``owner.abandon()`` called in every child forked from now on, as long as it lives."""
    global _registered
    _everyone.add(owner)
    if not _registered:
        # At first use: an import must not change how a program forks. Two threads may come here at once: then
        # owners are told twice.
        os.register_at_fork(after_in_child=_in_child)
        _registered = True


def _in_child() -> None:
    for owner in list(_everyone):
        try:
            owner.abandon()
        except Exception:
            # The others are inherited all the same.
            log.exception("%r of the parent process could not be let go of", owner)
