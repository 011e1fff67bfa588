"""``Logger``: the loggers of this package. No log call ends a thread of ours.

A log call runs the program's filters, handlers and record factory, which may raise. That must not end a
thread that reads a connection or runs handlers: nothing would be consumed any more. Imports nothing of the
package.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any

#: The names of all our threads begin so.
_OURS = "nsq-"


class Logger:
    """The logger called ``name``. What the program's logging raises on a thread of ours goes to stderr, as
    errors of ``logging.Handler.emit`` do. On other threads it reaches the caller: there it may also be an
    exception out of a signal handler.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, text: str, *args: object, **options: Any) -> None:
        self._call(logging.DEBUG, text, args, options)

    def info(self, text: str, *args: object, **options: Any) -> None:
        self._call(logging.INFO, text, args, options)

    def warning(self, text: str, *args: object, **options: Any) -> None:
        self._call(logging.WARNING, text, args, options)

    def error(self, text: str, *args: object, **options: Any) -> None:
        self._call(logging.ERROR, text, args, options)

    def exception(self, text: str, *args: object, **options: Any) -> None:
        self._call(logging.ERROR, text, args, {"exc_info": True, **options})

    def critical(self, text: str, *args: object, **options: Any) -> None:
        self._call(logging.CRITICAL, text, args, options)

    def log(self, level: int, text: str, *args: object, **options: Any) -> None:
        self._call(level, text, args, options)

    def _call(self, level: int, text: str, args: tuple[object, ...], options: dict[str, Any]) -> None:
        try:
            # 3: the record names our caller's caller, not this file.
            self._logger.log(level, text, *args, stacklevel=3, **options)
        except BaseException:
            if not threading.current_thread().name.startswith(_OURS):
                raise
            _print_error(text)


def _print_error(text: str) -> None:
    if logging.raiseExceptions and sys.stderr is not None:
        with suppress(Exception):  # stderr may be closed
            sys.stderr.write(f"--- the program's logging failed on the line {text!r} ---\n")
            traceback.print_exc(file=sys.stderr)
