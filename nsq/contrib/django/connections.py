"""Database connections around handlers, at the end of their threads, and before a fork.

A connection belongs to the thread that opened it. Django closes old ones at the end of a request; a handler
has no request, so that a connection that the database has ended would fail for ever.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections, reset_queries


def synchronous(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs an ``async def`` in an event loop of its own, and Django's async ORM on the
    caller's thread.
    """
    return async_to_sync(handler) if inspect.iscoroutinefunction(handler) else handler


def with_connections(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a handler: connections that are too old or broken are closed before and after it. For handler
    threads.
    """
    run = synchronous(handler)

    @wraps(handler)
    def handle(messages: Any) -> Any:
        reset_queries()  # with DEBUG Django keeps them
        close_old_connections()
        try:
            return run(messages)
        finally:
            close_old_connections()

    return handle


def close_old_connections() -> None:
    """Do what Django's function does, but leave connections within ``atomic`` alone, which it would close."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def closing_connections(at_thread_end: Callable[[], object] | None) -> Callable[[], object]:
    """Return a function for a thread's end: it calls the user's own one, if there is one, and closes the
    thread's connections, which otherwise stay open until the garbage collector finds them.
    """

    def end() -> None:
        try:
            if at_thread_end is not None:
                at_thread_end()
        finally:
            connections.close_all()

    return end


def close_before_fork() -> None:
    """Close all connections of this process, pools too.

    A child would share them with its parent, and neither could close them without harm to the other.
    """
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        close_pool = getattr(connection, "close_pool", None)
        if close_pool is not None:
            close_pool()
