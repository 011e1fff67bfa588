"""A store in this process that loses answers, fails and stalls when it is asked to."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from nsq.errors import WalError
from nsq.spark.wal.objects import Entry, Found, Memory

T = TypeVar("T")


class FaultyStore(Memory):
    """``errors`` and ``lost`` are the probabilities that a request fails before it does anything, and that
    its answer is lost after it has. Requests wait while ``running`` is clear. ``calls`` counts them by
    kind.
    """

    def __init__(self, seed: int = 0, *, errors: float = 0.0, lost: float = 0.0, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.errors = errors
        self.lost = lost
        self.running = threading.Event()
        self.running.set()
        self.calls: Counter[str] = Counter()
        self._chance = random.Random(seed)

    def _do(self, kind: str, name: str, call: Callable[[], T]) -> T:
        self.running.wait()
        self.calls[kind] += 1
        if self._chance.random() < self.errors:
            raise WalError(f"{self.path(name)}: 503")
        done = call()
        if kind != "get" and self._chance.random() < self.lost:
            raise WalError(f"{self.path(name)}: the answer was lost")
        return done

    def put_new(self, name: str, data: bytes) -> str:
        return self._do("put_new", name, lambda: Memory.put_new(self, name, data))

    def put_match(self, name: str, data: bytes, tag: str) -> str:
        return self._do("put_match", name, lambda: Memory.put_match(self, name, data, tag))

    def get(self, name: str) -> Found | None:
        return self._do("get", name, lambda: Memory.get(self, name))

    def list_after(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
        return self._do("list", prefix, lambda: Memory.list_after(self, prefix, after, most))

    def delete_many(self, names: Iterable[str]) -> None:
        return self._do("delete", "", lambda: Memory.delete_many(self, names))
