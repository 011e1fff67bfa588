from __future__ import annotations

import io
import json
import logging
import re
import sys
from pathlib import Path

import pytest

from nsq.daemons.serve.logs import DaemonLog, parse_level
from nsq.errors import ConfigError


def test_a_line_has_the_form_of_the_go_daemons() -> None:
    stream = io.StringIO()
    DaemonLog("[nsqd] ", "info", stream).info("TCP: listening on %s", "127.0.0.1:4150")
    form = r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: TCP: listening on 127\.0\.0\.1:4150\n"
    assert re.fullmatch(form, stream.getvalue())


def written(log: DaemonLog, stream: io.StringIO) -> list[str]:
    log.debug("x")
    log.info("x")
    log.warning("x")
    log.error("x")
    log.fatal("x")
    words = re.findall(r" ([A-Z]+): x\n", stream.getvalue())
    stream.truncate(stream.seek(0))
    return words


def test_every_level_lets_its_own_through_and_may_change() -> None:
    stream = io.StringIO()
    log = DaemonLog(level="debug", stream=stream)
    every = ["DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]
    for number, name in enumerate(["debug", "info", "warning", "error", "fatal"], start=1):
        log.level = name
        assert log.level == number
        assert written(log, stream) == every[number - 1 :]
    log.level = 2
    assert written(log, stream) == every[1:]


def test_the_standard_logger_obeys_the_same_level() -> None:
    stream = io.StringIO()
    log = DaemonLog("[x] ", "error", stream)
    log.logger.warning("unheard")
    log.logger.error("heard %d", 1)
    assert re.fullmatch(r"\[x\] \S+ \S+ ERROR: heard 1\n", stream.getvalue())


def test_levels_may_be_spelt_in_several_ways() -> None:
    assert parse_level("WARN") == parse_level("warning") == 3
    with pytest.raises(ConfigError, match=r"'loud' is none of debug, info, warning, error, fatal"):
        parse_level("loud")
    with pytest.raises(ConfigError, match="0 is not a number from 1 to 5"):
        DaemonLog(level=0)


def test_a_message_below_the_level_is_not_formatted() -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    stream = io.StringIO()
    DaemonLog(level="error", stream=stream).info("%s", Costly())
    assert stream.getvalue() == ""


def test_an_error_brings_its_traceback() -> None:
    stream = io.StringIO()
    log = DaemonLog(stream=stream)
    try:
        raise KeyError("lost")
    except KeyError as error:
        log.error("handler failed", exc=error)
    assert "ERROR: handler failed\nTraceback (most recent call last):\n" in stream.getvalue()
    assert stream.getvalue().endswith("KeyError: 'lost'\n")


def test_control_characters_are_escaped() -> None:
    stream = io.StringIO()
    DaemonLog(stream=stream).info("client sent %s", "a\x1b[2Jb\r\nc\td\x7f\x9b\N{SNOWMAN}")
    assert stream.getvalue().endswith("INFO: client sent a\\x1b[2Jb\\r\\nc\td\\x7f\\x9b\N{SNOWMAN}\n")


def test_a_wrong_format_loses_no_line() -> None:
    stream = io.StringIO()
    DaemonLog(stream=stream).info("%d apples", "three")
    assert "'%d apples' with ('three',)" in stream.getvalue()


def test_a_line_for_a_broken_stream_is_dropped() -> None:
    class Broken(io.StringIO):
        broken = True

        def write(self, text: str) -> int:
            if self.broken:
                raise BrokenPipeError(32, "Broken pipe")
            return super().write(text)

    stream = Broken()
    log = DaemonLog(stream=stream)
    log.error("dropped")
    stream.broken = False
    log.error("written")
    assert stream.getvalue().count("ERROR") == 1
    stream.close()
    log.error("dropped too")


def test_a_log_without_a_stream_writes_to_the_current_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    log = DaemonLog()
    later = io.StringIO()
    monkeypatch.setattr(sys, "stderr", later)
    log.info("here")
    assert later.getvalue().endswith("INFO: here\n")
    monkeypatch.setattr(sys, "stderr", None)
    log.info("nowhere")
    assert later.getvalue().count("\n") == 1


def test_several_logs_are_independent_of_each_other_and_of_logging() -> None:
    known = set(logging.root.manager.loggerDict)
    first, second = io.StringIO(), io.StringIO()
    a, b = DaemonLog("[same] ", "error", first), DaemonLog("[same] ", "debug", second)
    a.info("a")
    b.info("b")
    assert (first.getvalue(), second.getvalue().count("\n")) == ("", 1)
    assert set(logging.root.manager.loggerDict) == known


def test_a_json_log_has_an_object_per_line() -> None:
    stream = io.StringIO()
    log = DaemonLog("[nsqd] ", "info", stream, form="json")
    log.info("TOPIC(%s): created\n", "t\udcff")
    try:
        raise KeyError("lost")
    except KeyError as error:
        log.error("handler failed", exc=error)
    log.logger.warning("of a library: %d", 1)
    first, second, third = map(json.loads, stream.getvalue().splitlines())
    assert list(first) == ["time", "level", "program", "message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first["time"])
    assert (first["level"], first["program"], first["message"]) == (
        "info",
        "nsqd",
        "TOPIC(t\udcff): created\n",
    )
    assert second["traceback"].endswith("KeyError: 'lost'\n")
    assert (third["level"], third["message"]) == ("warning", "of a library: 1")


def test_a_log_file_that_was_renamed_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = DaemonLog(path=str(path))
    log.info("one")
    path.rename(tmp_path / "log.1")
    log.info("two")
    log.reopen()
    log.info("three \udcff")
    assert [line.split()[-1] for line in (tmp_path / "log.1").read_text().splitlines()] == ["one", "two"]
    assert path.read_text().endswith("three \\udcff\n")
    path.unlink()
    path.mkdir()
    log.reopen()
    log.info("four")  # lost with the file that was removed, but no error
    log.close()
    log.info("five")
    with pytest.raises(ConfigError, match=r"--log-file '.*log' cannot be opened: Is a directory"):
        DaemonLog(path=str(path))
