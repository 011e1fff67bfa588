"""Database connections around handlers, at the end of their threads, and before a fork.

A connection belongs to the thread that opened it. Django closes old ones at the end of a request; a handler
has no request, so that a connection that the database has ended would fail for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from django.db import connections, reset_queries


def with_connections(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler: connections that are too old or broken are closed before and after it. For handler
    threads.
    """

    @wraps(handler)
    def handle(messages: Any) -> Any:
        if not hasattr(_thread, "end"):
            _thread.end = _ThreadEnd()
        reset_queries()  # with DEBUG Django keeps them
        close_old_connections()
        try:
            return handler(messages)
        finally:
            close_old_connections()

    return handle


def close_old_connections() -> None:
    """Do what Django's function does, but leave connections within ``atomic`` alone, which it would close."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


class _ThreadEnd:
    """Lives as long as the thread that holds it in ``_thread``, and closes its connections.

    Otherwise they stay open until the garbage collector finds them. The thread's own variables end on the
    thread, in any order: hence the references to the connections.
    """

    def __init__(self) -> None:
        # Those that the handler opens later too: the objects are made here, the connections at first use.
        self._connections = connections.all()

    def __del__(self) -> None:
        for connection in self._connections:
            with suppress(Exception):  # of a connection that is broken nothing is left to close
                connection.close()


_thread = threading.local()


def close_before_fork() -> None:
    """Close all connections of this process, pools too.

    A child would share them with its parent, and neither could close them without harm to the other.
    """
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        close_pool = getattr(connection, "close_pool", None)
        if close_pool is not None:
            close_pool()
