"""Runs the blocks of code in docs/ as a reader would.

test_first_hour runs those of README.md and the tutorial.

Python blocks run unchanged in their own process, except that the addresses in STANDING_FOR become those of
daemons that the test starts. A block that calls ``run()`` gets a message for each of its consumers and, when
all are finished, SIGTERM. pytest runs blocks that define tests. Shell commands are only checked: flags and
targets must exist; the requests of curl are sent.
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
from nsq.flags import FlagExit, parse
from nsq.spark import cli as nsq_spark
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import BIN_DIR, Factory
from nsq.tools import (
    completion,
    front_door,
    nsq_pubsub,
    nsq_stat,
    nsq_tail,
    nsq_to_file,
    nsq_to_http,
    nsq_to_nsq,
    to_nsq,
)
from tests.golden.recordings import others_are_judged

from .consuming import channel_of, create, publish, until
from .pages import PAGES, ROOT, Block, commands, python_blocks, shell_blocks

#: Addresses on the pages, and the addresses of the test's daemons that replace them.
STANDING_FOR: dict[str, Callable[[Nsqlookupd, Nsqd, Nsqd], str]] = {
    "127.0.0.1:4160": lambda lookupd, first, second: lookupd.tcp_address,
    "127.0.0.1:4161": lambda lookupd, first, second: lookupd.http_address,
    "10.0.0.1:4160": lambda lookupd, first, second: lookupd.tcp_address,
    "10.0.0.1:4161": lambda lookupd, first, second: lookupd.http_address,
    "127.0.0.1:4150": lambda lookupd, first, second: first.tcp_address,
    "127.0.0.1:4151": lambda lookupd, first, second: first.http_address,
    "10.0.0.2:4150": lambda lookupd, first, second: first.tcp_address,
    "10.0.0.2:4151": lambda lookupd, first, second: first.http_address,
    "10.0.0.3:4150": lambda lookupd, first, second: second.tcp_address,
}
A_MESSAGE = b'{"order": 1, "amount": 20}'
LONGEST = 120.0
#: The options of the command-line tools, by name.
TOOLS: dict[str, type[Any]] = {
    nsq_pubsub.PROG: nsq_pubsub.PubSubOptions,
    nsq_stat.PROG: nsq_stat.StatOptions,
    nsq_tail.PROG: nsq_tail.TailOptions,
    nsq_to_file.PROG: nsq_to_file.ToFileOptions,
    nsq_to_http.PROG: nsq_to_http.ToHttpOptions,
    nsq_to_nsq.PROG: nsq_to_nsq.NsqToNsqOptions,
    to_nsq.PROG: to_nsq.ToNsqOptions,
}
#: Commands that are not checked.
ELSEWHERE = {"cd", "celery", "export", "for", "git", "kill", "pip", "pytest", "sleep", "source"}


class Place:
    """Daemons and a directory for a block."""

    def __init__(self, lookupd: Nsqlookupd, first: Nsqd, second: Nsqd, directory: Path) -> None:
        self.lookupd, self.first, self.second = lookupd, first, second
        self.directory = directory
        self.output = directory / "output"

    def substituted(self, text: str) -> str:
        """Replace addresses in one pass, because the address of a daemon may also be on a page."""
        pattern = "|".join(re.escape(address) + r"\b" for address in STANDING_FOR)
        return re.sub(
            pattern, lambda found: STANDING_FOR[found[0]](self.lookupd, self.first, self.second), text
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Python without NSQ_BIN_DIR: daemons in the pages' blocks are always ours."""
        environment = {name: value for name, value in os.environ.items() if name != BIN_DIR}
        with self.output.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-W", "error", *arguments],
                cwd=self.directory,
                env={**environment, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def expect_end(self, process: subprocess.Popen[bytes]) -> None:
        """Check that it ends by itself, with status 0 and without a traceback."""
        try:
            status = process.wait(LONGEST)
        finally:
            process.kill()
            process.wait()
        said = self.output.read_text()
        assert status == 0, said
        assert "Traceback" not in said, said


@pytest.fixture
def place(nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd], tmp_path: Path) -> Place:
    return Place(nsqlookupd, nsqd_factory(lookupd=[nsqlookupd]), nsqd_factory(lookupd=[nsqlookupd]), tmp_path)


@pytest.mark.parametrize("block", python_blocks(), ids=lambda block: block.name)
def test_python_blocks_of_the_pages_run(block: Block, place: Place) -> None:
    if block.not_run:
        pytest.skip(block.not_run)
    code = place.substituted(block.code)
    compile(code, block.name, "exec", dont_inherit=True)
    if re.search(r"^def test_", code, re.MULTILINE):
        as_tests(code, place)
    elif re.search(r"(?<!asyncio)\.run\((?!once=True)", code):
        as_service(code, place)
    else:
        as_script(code, place)


def as_script(code: str, place: Place) -> None:
    (place.directory / "block.py").write_text(code)
    place.expect_end(place.start("block.py"))


def as_tests(code: str, place: Place) -> None:
    (place.directory / "test_block.py").write_text(code)
    (place.directory / "pytest.ini").write_text("[pytest]\n")
    process = place.start(
        "-m", "pytest", "-q", "-p", "nsq.testing.plugin", "-p", "no:cacheprovider", "test_block.py"
    )
    place.expect_end(process)
    assert " passed" in place.output.read_text()


def as_service(code: str, place: Place) -> None:
    consumed = re.findall(r'Consumer\(\s*"([^"]+)",\s*"([^"]+)"', code)
    assert consumed, "a block that calls run() has a Consumer whose topic and channel are written out"
    for topic, channel in consumed:
        create(place.first, topic, channel)
        publish(place.first, [A_MESSAGE], topic)
        until("registered", lambda topic=topic: listed(place.lookupd, topic))
    (place.directory / "block.py").write_text(code)
    process = place.start("block.py")
    try:
        for topic, channel in consumed:
            is_done = partial(finished_or_ended, place.first, topic, channel, process)
            until("finished", is_done)
        process.send_signal(signal.SIGTERM)
    except AssertionError:
        process.kill()
        process.wait()
        raise AssertionError(place.output.read_text()) from None
    place.expect_end(process)


def listed(lookupd: Nsqlookupd, topic: str) -> bool:
    reply = lookupd.get(f"/lookup?topic={topic}")
    return reply.status == 200 and bool(reply.json()["producers"])


def finished_or_ended(nsqd: Nsqd, topic: str, channel: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "it ended before SIGTERM"
    stats = channel_of(nsqd, topic, channel)
    left = stats["depth"] + stats["in_flight_count"] + stats["deferred_count"]
    return bool(stats["message_count"] and stats["clients"] and not left)


@pytest.mark.parametrize("block", shell_blocks(), ids=lambda block: block.name)
def test_shell_blocks_of_the_pages_run(block: Block, place: Place) -> None:
    for command in commands(place.substituted(block.code)):
        check(command, block, place)


def check(command: list[str], block: Block, place: Place) -> None:
    program, arguments = command[0].removeprefix(".venv/bin/"), command[1:]
    checks: dict[str, Callable[[], object]] = {
        "nsqd": lambda: check_flags(NsqdOptions, arguments),
        "nsqlookupd": lambda: check_flags(NsqlookupdOptions, arguments),
        "nsqadmin": lambda: check_flags(NsqadminOptions, arguments),
        "nsq-spark": lambda: check_spark(arguments),
        "nsq": lambda: check_front_door(arguments),
        **{tool: partial(check_flags, options, arguments) for tool, options in TOOLS.items()},
        "curl": lambda: check_curl(arguments, place),
        "make": lambda: check_target(arguments),
        "python": lambda: check_program(arguments, block),
        "python3": lambda: check_program(arguments, block),
    }
    if program in checks:
        checks[program]()
    else:
        assert program in ELSEWHERE, f"there is no check for {' '.join(command)}"


def check_flags(options: type[Any], arguments: list[str]) -> None:
    """Check flags, except --config, whose file does not exist here."""
    kept = [argument for argument in arguments if not argument.startswith("--config=")]
    try:
        parse(options, kept, prog="nsqd", version="nsqd")
    except FlagExit as ending:
        if ending.status:
            pytest.fail(ending.text)


def check_front_door(arguments: list[str]) -> None:
    """Check that the command exists and has the flags."""
    if arguments == ["--help"]:
        return
    command = front_door.COMMANDS[arguments[0]]
    known = completion.flags_of(command)
    for word in arguments[1:]:
        if word.startswith("--"):
            assert word.removeprefix("--").partition("=")[0] in known, (
                f"nsq {arguments[0]} has no flag {word}"
            )


def check_spark(arguments: list[str]) -> None:
    # Only parses, so that it needs neither Spark nor Arrow.
    nsq_spark.parse(arguments)


def check_curl(arguments: list[str], place: Place) -> None:
    method, body, url = "", None, ""
    rest = iter(arguments)
    for word in rest:
        if word == "-X":
            method = next(rest)
        elif word == "-d":
            body = next(rest)
        elif not word.startswith("-"):
            url = word
    parts = urlsplit(url)
    known = [daemon.http_address for daemon in (place.lookupd, place.first)]
    assert parts.netloc in known, f"{url} is not a daemon of the test"
    if others_are_judged() and parts.path.startswith(("/debug/", "/topic/peek")):
        return  # only our daemons have it
    connection = http.client.HTTPConnection(parts.netloc, timeout=LONGEST)
    try:
        connection.request(
            method or ("GET" if body is None else "POST"), parts.path + "?" + parts.query, body
        )
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
    finally:
        connection.close()


def check_target(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in (word for word in arguments if "=" not in word):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"there is no target {target}"


def check_program(arguments: list[str], block: Block) -> None:
    name = arguments[0]
    if name == "-m":
        assert importlib.util.find_spec(arguments[1]), f"there is no module {arguments[1]}"
    elif name.endswith(".py"):
        assert (ROOT / name).is_file() or f"`{name}`" in block.page.read_text("utf-8"), f"there is no {name}"
    else:
        assert name == "-c", f"there is no check for python {name}"
        compile(arguments[1], block.name, "exec", dont_inherit=True)


def test_there_is_something_to_run() -> None:
    assert {"README.md", "client.md", "patterns.md"} <= {page.name for page in PAGES}
    assert len(python_blocks()) > 20
