"""Running the consumers of a project in several processes, on the supervisor of ``nsq work``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import django

from nsq import Consumer
from nsq.contrib.django.connections import close_before_fork
from nsq.contrib.django.handlers import chosen
from nsq.work import before_fork
from nsq.work.supervisor import files_of


def setup() -> None:
    """Set Django up: ``DJANGO_SETTINGS_MODULE=shop.settings nsq work --setup nsq.contrib.django:setup …``."""
    django.setup()
    before_fork(close_before_fork)


class DjangoProgram:
    """The chosen consumers of a project. Loading it imports the modules ``nsq_handlers``."""

    def __init__(self, names: Iterable[str]) -> None:
        self._chosen = chosen(names)

    def consumers(self) -> list[Consumer]:
        return [each.make() for each in self._chosen]

    def files(self) -> dict[str, float]:
        """Return the project's files, and when they were changed."""
        modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] != "nsq"]
        return files_of(modules)
