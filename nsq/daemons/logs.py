"""A daemon's log: one line per event, in the form operators know from the Go daemons.

``[nsqd] 2026/11/20 08:28:38.123456 INFO: message``. Built on the standard library's logging without touching
its global registry: several daemons live in one process, each with a prefix and a level of its own, and a
host program's logging configuration stays what it was. Imports nothing of the package but its errors.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

from nsq.errors import ConfigError

DEBUG, INFO, WARNING, ERROR, FATAL = 1, 2, 3, 4, 5

LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR, "fatal": FATAL}
_SPELLINGS = {**LEVELS, "warn": WARNING}
_NAMES = {number: name for name, number in LEVELS.items()}


def parse_level(text: str) -> int:
    """The level's number (debug is 1, fatal is 5), or ConfigError naming the choices."""
    number = _SPELLINGS.get(text.lower())
    if number is None:
        raise ConfigError(f"log level {text!r} is none of {', '.join(LEVELS)}")
    return number


def checked_level(text: str) -> str:
    """The text itself, as flags keep it, or ConfigError."""
    parse_level(text)
    return text


class DaemonLog:
    """Where one daemon writes. Messages use %-formatting, done only when the level lets them through.

    Without a ``stream`` it is stderr, the one of the moment of writing. A stream that is closed or broken
    loses lines; it never raises into the daemon.
    """

    def __init__(self, prefix: str = "", level: str | int = INFO, stream: TextIO | None = None) -> None:
        # Not by getLogger: unknown to the registry, and without a parent to propagate to.
        self._logger = logging.Logger(prefix.strip(" []") or "nsq")
        handler = _QuietHandler(stream)
        handler.setFormatter(_GoFormatter(prefix))
        self._logger.addHandler(handler)
        self._level = INFO
        self.level = level

    @property
    def level(self) -> int:
        """1 (debug) to 5 (fatal); may be set to a number or a name while the daemon runs."""
        return self._level

    @level.setter
    def level(self, level: str | int) -> None:
        number = parse_level(level) if isinstance(level, str) else level
        if number not in _NAMES:
            raise ConfigError(f"log level {level!r} is not a number from {DEBUG} to {FATAL}")
        self._level = number
        self._logger.setLevel(number * 10)

    @property
    def level_name(self) -> str:
        return _NAMES[self._level]

    @property
    def logger(self) -> logging.Logger:
        """For libraries that insist on a standard logger; it obeys this log's level and form."""
        return self._logger

    def debug(self, message: str, *args: object) -> None:
        if self._level <= DEBUG:
            self._logger.debug(message, *args)

    def info(self, message: str, *args: object) -> None:
        if self._level <= INFO:
            self._logger.info(message, *args)

    def warning(self, message: str, *args: object) -> None:
        if self._level <= WARNING:
            self._logger.warning(message, *args)

    def error(self, message: str, *args: object, exc: BaseException | None = None) -> None:
        """With ``exc``, the traceback follows the line."""
        if self._level <= ERROR:
            self._logger.error(message, *args, exc_info=exc)

    def fatal(self, message: str, *args: object) -> None:
        self._logger.critical(message, *args)


class _QuietHandler(logging.Handler):
    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except (TypeError, ValueError) as error:
            line = f"unformattable log message {record.msg!r} with {record.args!r}: {error}\n"
        stream = self._stream if self._stream is not None else sys.stderr
        if stream is None:
            return
        try:
            stream.write(line)
            stream.flush()
        except (OSError, ValueError):
            # Closed, broken pipe, disk full: there is nowhere left to say so.
            pass


class _GoFormatter(logging.Formatter):
    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._second = -1
        self._stamp = ""

    def format(self, record: logging.LogRecord) -> str:
        second, microsecond = divmod(int(record.created * 1_000_000), 1_000_000)
        if second != self._second:
            self._stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
            self._second = second
        level = "FATAL" if record.levelno == logging.CRITICAL else record.levelname
        line = f"{self._prefix}{self._stamp}.{microsecond:06d} {level}: {record.getMessage()}"
        if record.exc_info and record.exc_info[0] is not None:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line
