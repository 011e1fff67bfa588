"""Loggers whose handlers, filters and record factories raise."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import nsq
from nsq.log import Logger
from tests.fakes.threads import PATIENCE


def fail(*_: Any, **__: Any) -> NoReturn:
    raise SystemExit("the program's logging is broken")


@pytest.fixture(params=["handler", "filter", "record factory"])
def broken_logging(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("nsq.test")
    if request.param == "handler":
        monkeypatch.setattr(logger, "callHandlers", fail)
    elif request.param == "filter":
        monkeypatch.setattr(logger, "filters", [fail])
    else:
        monkeypatch.setattr(logging, "_logRecordFactory", fail)


def on_thread(name: str, call: Callable[[], None]) -> list[BaseException]:
    """Return what the call has raised on a thread of that name."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join(PATIENCE)
    return raised


@pytest.fixture
def log() -> Logger:
    return Logger("nsq.test")


@pytest.mark.usefixtures("broken_logging")
def test_no_call_raises_on_a_thread_of_ours_and_the_error_is_printed(
    log: Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    def call() -> None:
        for write in (log.warning, log.error, log.exception, log.critical):
            write("line %d", 7)
        log.log(logging.ERROR, "line %d", 8)

    assert on_thread("nsq-orders/billing-rdy", call) == []
    printed = capsys.readouterr().err
    assert printed.count("the program's logging failed on the line 'line %d'") == 5
    assert printed.count("SystemExit: the program's logging is broken") == 5


@pytest.mark.usefixtures("broken_logging")
def test_a_call_raises_on_a_thread_of_the_programs(log: Logger) -> None:
    (error,) = on_thread("worker", lambda: log.warning("line"))
    assert isinstance(error, SystemExit)


def test_a_closed_stderr_does_not_matter(log: Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("nsq.test"), "filters", [fail])
    monkeypatch.setattr("sys.stderr.write", fail_to_write)
    assert on_thread("nsq-producer", lambda: log.warning("line")) == []


def fail_to_write(text: str) -> NoReturn:
    raise ValueError("I/O operation on closed file")


def test_no_module_has_a_logger_of_another_kind() -> None:
    package = Path(nsq.__file__).parent
    found = re.compile(r"^\w+ = logging\.getLogger", re.MULTILINE)
    assert [str(path) for path in package.rglob("*.py") if found.search(path.read_text("utf-8"))] == []


def test_records_name_the_function_that_logs(log: Logger, caplog: pytest.LogCaptureFixture) -> None:
    def with_an_error() -> None:
        try:
            raise KeyError("x")
        except KeyError:
            log.exception("failed: %s", "x", extra={"nsq_topic": "orders"})

    caplog.set_level(logging.DEBUG)
    for level in (log.debug, log.info, log.warning):
        level("line")
    with_an_error()
    log.log(logging.INFO, "line")
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO", "WARNING", "ERROR", "INFO"]
    assert {record.filename for record in caplog.records} == {"test_log.py"}
    failed: Any = caplog.records[3]
    assert (failed.funcName, failed.message, failed.nsq_topic) == ("with_an_error", "failed: x", "orders")
    assert failed.exc_info[0] is KeyError
