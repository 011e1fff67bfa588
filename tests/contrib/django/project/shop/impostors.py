"""What looks like a task and is none."""

from __future__ import annotations

from typing import Any


class Impostor:
    def using(self, **_: Any) -> Impostor:
        return self

    def call(self, *_: Any) -> None:
        raise AssertionError("a message must not have this called")


one = Impostor()
