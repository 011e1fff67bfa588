"""``manage.py nsq_consume``: runs the consumers of the project in several processes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from nsq import Consumer, NsqError
from nsq.contrib.django.connections import close_before_fork
from nsq.contrib.django.handlers import chosen
from nsq.options import METADATA
from nsq.work import before_fork, supervisor
from nsq.work.workers import WorkFlags

_LEVELS = {0: logging.WARNING, 1: logging.INFO}


class ProjectConsumers:
    """The chosen consumers of a project. Loading it imports the modules ``nsq_handlers``."""

    def __init__(self, names: Iterable[str]) -> None:
        self._chosen = chosen(names)

    def consumers(self) -> list[Consumer]:
        return [each.make() for each in self._chosen]

    def files(self) -> dict[str, float]:
        """Return the project's files, and when they were changed."""
        modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] != "nsq"]
        return supervisor.files_of(modules)


class Command(BaseCommand):
    help = (
        "Runs the consumers that the apps declare in nsq_handlers.py. SIGTERM finishes the messages in work "
        "and exits; SIGHUP loads the program again, one process at a time."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "names",
            nargs="*",
            help="which consumers: an app's label, label.handler or topic/channel (default: all)",
        )
        defaults = WorkFlags()
        for each in fields(WorkFlags):
            name, text = f"--{each.name.replace('_', '-')}", each.metadata[METADATA].help
            if each.type == "bool":
                parser.add_argument(name, action="store_true", help=text)
                continue
            default = getattr(defaults, each.name)
            parser.add_argument(
                name, type=type(default), default=default, help=f"{text} (default: {default})"
            )

    def handle(self, *_: Any, names: list[str], verbosity: int, **options: Any) -> None:
        log_to_stderr(verbosity)
        try:
            flags = WorkFlags(**{each.name: options[each.name] for each in fields(WorkFlags)})
            program = ProjectConsumers(names)
            # Made once here: a wrong option is an error of the command, not of every worker.
            program.consumers()
            before_fork(close_before_fork)
            status = supervisor.run(flags, program)
        except NsqError as error:
            raise CommandError(str(error)) from error
        if status:
            raise CommandError("not all workers ended cleanly", returncode=status)


def log_to_stderr(verbosity: int) -> None:
    """Show our log, unless the setting LOGGING does so."""
    logger = logging.getLogger("nsq")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(process)d] %(asctime)s %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(_LEVELS.get(verbosity, logging.DEBUG))
