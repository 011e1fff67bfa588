"""What the tools and ``nsq.contrib`` share: supervised processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[[], Any])

#: What ``nsq.work.supervisor`` calls.
before_forks: list[Callable[[], Any]] = []


def before_fork(function: F) -> F:
    """Have the supervisor of ``nsq work`` call the function before every fork. It closes what a child must
    not share with its parent, such as connections to a database. Call this in the function of ``--setup`` or
    while the program is imported; it also works as a decorator.
    """
    before_forks.append(function)
    return function
