"""NsqBackend with results in memory, in place of Django's two backends, for Django's own tests."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from django.tasks.exceptions import TaskResultDoesNotExist

from nsq.contrib.django import locmem
from nsq.contrib.django.tasks import NsqBackend
from nsq.contrib.django.testing import handle


class DummyBackend(NsqBackend):
    """Publishes to memory; no worker takes the messages."""

    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.nsq = replace(self.nsq, modules=["tasks"])  # Django's tests are no app
        self.results: list[Any] = []

    def add_result(self, result: Any) -> None:
        self.results.append(deepcopy(result))

    def save_result(self, result: Any) -> None:
        self.results = [result if each.id == result.id else each for each in self.results]

    def get_result(self, result_id: str) -> Any:
        for each in self.results:
            if each.id == result_id:
                return each
        raise TaskResultDoesNotExist(result_id)

    def clear(self) -> None:
        self.results.clear()


class ImmediateBackend(DummyBackend):
    """A worker takes each message at once."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        handle(self.handle, locmem.outbox.pop().body)
        return self.get_result(result.id)
