"""A daemon's log: one line per event, as text in the form of the Go daemons or as JSON, to stderr or a file.

Text looks like ``[nsqd] 2026/11/20 08:28:38.123456 INFO: message``. This module does not use the standard
library's ``logging``: one call of it costs more than the rest of a registration in nsqlookupd, and a host
program's logging configuration must stay as it is. Imports nothing of the package but its errors.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import time
import traceback
from typing import Protocol, TextIO

from nsq.errors import ConfigError

DEBUG, INFO, WARNING, ERROR, FATAL = 1, 2, 3, 4, 5

LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR, "fatal": FATAL}
_SPELLINGS = {**LEVELS, "warn": WARNING}
_NAMES = {number: name for name, number in LEVELS.items()}

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)


def parse_level(text: str) -> int:
    """Return the level's number (debug is 1, fatal is 5), or raise ConfigError naming the choices."""
    number = _SPELLINGS.get(text.lower())
    if number is None:
        raise ConfigError(f"log level {text!r} is none of {', '.join(LEVELS)}")
    return number


def checked_level(text: str) -> str:
    """Return the level's name unchanged, or raise ConfigError."""
    parse_level(text)
    return text


class LogOptions(Protocol):
    """The options that every daemon has for its log."""

    @property
    def log_prefix(self) -> str: ...
    @property
    def log_level(self) -> str: ...
    @property
    def log_format(self) -> str: ...
    @property
    def log_file(self) -> str: ...
    @property
    def verbose(self) -> bool: ...


#: Characters that would change what a terminal shows, or begin another line.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_CONTROL |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\t"}


class DaemonLog:
    """The log of one daemon. Messages are %-formatted only if their level is logged.

    Without a ``stream`` or a ``path`` it writes to the current sys.stderr. Lines for a closed or broken
    stream are lost; the log never raises an error into the daemon. Any thread may write: a line is one write.
    """

    def __init__(
        self,
        prefix: str = "",
        level: str | int = INFO,
        stream: TextIO | None = None,
        *,
        form: str = TEXT,
        path: str = "",
    ) -> None:
        self._prefix = prefix
        self._json = form == JSON
        self._program = prefix.strip(" []")
        self._path = path
        self._file = _opened(path) if path else None
        self._stream = stream
        self._stamp = (-1, "")  # the second in which the last line was written, and its text
        self._logger = logging.Logger(self._program or "nsq")  # not getLogger: it belongs to this log
        self._logger.addHandler(_Forwarding(self))
        self._level = INFO
        self.level = level

    @staticmethod
    def of(options: LogOptions, stream: TextIO | None = None) -> DaemonLog:
        """Make the log for a daemon's options; ConfigError if its file cannot be opened."""
        level = "debug" if options.verbose else options.log_level
        return DaemonLog(options.log_prefix, level, stream, form=options.log_format, path=options.log_file)

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
    def logger(self) -> logging.Logger:
        """A standard logger for libraries that require one; it writes to this log."""
        return self._logger

    def debug(self, message: str, *args: object) -> None:
        if self._level <= DEBUG:
            self._write("debug", message, args)

    def info(self, message: str, *args: object) -> None:
        if self._level <= INFO:
            self._write("info", message, args)

    def warning(self, message: str, *args: object) -> None:
        if self._level <= WARNING:
            self._write("warning", message, args)

    def error(self, message: str, *args: object, exc: BaseException | None = None) -> None:
        """Log an error. With ``exc``, the traceback follows the line."""
        if self._level <= ERROR:
            self._write("error", message, args, exc)

    def fatal(self, message: str, *args: object) -> None:
        self._write("fatal", message, args)

    def reopen(self) -> None:
        """Open the file again, after a program like logrotate has renamed it."""
        if not self._path:
            return
        try:
            renewed = _opened(self._path)
        except ConfigError as error:
            self.error("%s; still writing to the old file", error)
            return
        if self._file is not None:
            # Replace only the descriptor: a thread that is writing to the file then loses no line.
            os.dup2(renewed.fileno(), self._file.fileno(), inheritable=False)
            renewed.close()

    def close(self) -> None:
        """Close the file that --log-file names. Later lines are lost."""
        if self._file is not None:
            self._file.close()

    def _write(
        self, level: str, message: str, args: tuple[object, ...], exc: BaseException | None = None
    ) -> None:
        now = time.time()
        try:
            text = message % args if args else message
        except (TypeError, ValueError) as error:
            text = f"unformattable log message {message!r} with {args!r}: {error}"
        trace = "".join(traceback.format_exception(exc)) if exc is not None else ""
        line = (
            self._as_json(now, level, text, trace) if self._json else self._as_text(now, level, text, trace)
        )
        stream = self._stream if self._stream is not None else sys.stderr
        file = self._file or _unbuffered(stream)
        try:
            if file is not None:
                file.write(line.encode("utf-8", "backslashreplace"))
            elif stream is not None:
                stream.write(line)
                stream.flush()
        except (OSError, ValueError):
            # Closed, broken pipe or disk full: the line is lost.
            pass

    def _as_text(self, now: float, level: str, text: str, trace: str) -> str:
        second, microsecond = divmod(int(now * 1_000_000), 1_000_000)
        known, stamp = self._stamp
        if second != known:
            stamp = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
            self._stamp = (second, stamp)
        if not text.isprintable():
            text = text.translate(_CONTROL)
        return f"{self._prefix}{stamp}.{microsecond:06d} {level.upper()}: {text}\n{trace}"

    def _as_json(self, now: float, level: str, text: str, trace: str) -> str:
        second, microsecond = divmod(int(now * 1_000_000), 1_000_000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        fields = {
            "time": f"{stamp}.{microsecond:06d}Z",
            "level": level,
            "program": self._program,
            "message": text,
        }
        if trace:
            fields["traceback"] = trace
        return json.dumps(fields) + "\n"


def _unbuffered(stream: TextIO | None) -> io.RawIOBase | None:
    """Return the file below the stream's buffer, if it has one. A line that cannot be written would stay in
    the buffer, and Python would fail on it when it exits, with status 120.
    """
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, io.RawIOBase) else None


def _opened(path: str) -> io.FileIO:
    try:
        return io.FileIO(path, "a")
    except OSError as error:
        raise ConfigError(f"--log-file {path!r} cannot be opened: {error.strerror or error}") from None


class _Forwarding(logging.Handler):
    """Forwards records of the standard logger to the daemon's log."""

    def __init__(self, log: DaemonLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = _NAMES[min(FATAL, max(DEBUG, record.levelno // 10))]
        exc = record.exc_info[1] if record.exc_info else None
        args = record.args if isinstance(record.args, tuple) else (record.args,)
        self._log._write(level, str(record.msg), args or (), exc)
