"""``nsq work``: runs the consumers of a module in several processes, and supervises them."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nsq import Consumer
from nsq.errors import UsageError
from nsq.tools.program import LogFlags, flag, run_command
from nsq.work import supervisor
from nsq.work.supervisor import files_of
from nsq.work.workers import WorkFlags


@dataclass(frozen=True, kw_only=True)
class WorkOptions(WorkFlags, LogFlags):
    setup: str = flag(
        "",
        "module:function, called before the modules are imported, for example nsq.contrib.django:setup",
    )
    log_prefix: str = flag("[<PID>] ", "start of every log line")


def main(argv: Sequence[str]) -> int:
    synopsis = (
        "MODULE[:CONSUMER] [MORE...]\nRuns consumers in several processes. CONSUMER is a Consumer, a list of "
        "them, or a function\nthat returns either; without it, all consumers of the module run.\n"
        "SIGTERM finishes the messages in work and exits; SIGHUP reloads the program, one process at a time."
    )
    return run_command(WorkOptions, argv, "nsq work", synopsis, _work)


def _work(options: WorkOptions, targets: tuple[str, ...]) -> int:
    sys.path.insert(0, os.getcwd())
    program = UserModules(targets)
    if options.setup:
        call_setup(options.setup)
    program.load()
    return supervisor.run(options, program)


def call_setup(name: str) -> None:
    module, colon, _ = name.partition(":")
    if not colon:
        raise UsageError(f"--setup {name}: write module:function, such as {module}:setup")
    function = named(name)
    if not callable(function):
        raise UsageError(f"--setup {name} is {function!r}, which is not a function")
    function()


class UserModules:
    """The user's modules, and the consumers in them."""

    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = targets
        self._before = set(sys.modules)

    def load(self) -> None:
        """Import the modules; UsageError when a named consumer is missing."""
        for target in self._targets:
            found = named(target)
            if not callable(found) or isinstance(found, Consumer):
                for consumer in _checked_consumers(target, found):
                    if consumer.health().state != "new":
                        raise UsageError(
                            f"{target.partition(':')[0]} runs or starts {consumer!r} while it is imported: "
                            'put that below `if __name__ == "__main__":`; nsq work starts the consumer itself'
                        )
        if logging.getLogger().handlers:  # the program has configured logging itself
            logging.getLogger("nsq").handlers.clear()

    def consumers(self) -> list[Consumer]:
        """Return the consumers; call functions. For the process that runs the consumers."""
        consumers = []
        for target in self._targets:
            found = named(target)
            if callable(found) and not isinstance(found, Consumer):
                found = found()
            consumers += _checked_consumers(target, found)
        return list(dict.fromkeys(consumers))

    def files(self) -> dict[str, float]:
        """Return the user's own files, and when they were changed."""
        return files_of([module for name, module in list(sys.modules.items()) if name not in self._before])


def named(target: str) -> Any:
    """Return what ``module:name`` names, or the consumers of ``module``."""
    name, colon, path = target.partition(":")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise UsageError(f"there is no module {name} in {os.getcwd()} or in Python's path") from None
    if not colon:
        return [each for each in vars(found).values() if isinstance(each, Consumer)]
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"{target}: there is no {part}") from None
    return found


def _checked_consumers(target: str, found: Any) -> list[Consumer]:
    consumers = [found] if isinstance(found, Consumer) else list(found) if isinstance(found, Iterable) else []
    if not consumers or not all(isinstance(each, Consumer) for each in consumers):
        raise UsageError(f"{target} is {found!r}: it must be or give a Consumer, or several")
    return consumers
