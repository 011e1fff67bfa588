"""Runs the blocks of a page in order in one shell, as a reader types them.

The shell has a network of its own, where the ports on the pages are free, and processes of its own, which all
end with it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .consuming import until
from .pages import Block, blocks

#: A slow machine needs many seconds for an interpreter that starts beside others.
PATIENCE = 120.0
_ISOLATED = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
_PREFIX = "status of the last command: "
#: These change nothing, so a reader who sees too little repeats them.
_LOOK = re.compile(r"nsq (topics|channels|peek|top|doctor)\b|curl 'http://\S+/stats'")


class ShellSession:
    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, name="output of the shell")
        self._reader.start()
        self.directory = directory

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(list(self._lines))

    def follow(
        self, page: Path, expected: Iterable[tuple[str, str]], skipped: Callable[[str], object]
    ) -> None:
        """Do what the page says. ``expected`` has commands of the page, in order, each with a pattern that
        must appear in the output after it.
        """
        names = iter(re.findall(r"(?:[Ss]ave this as|[Rr]eplace) `(\S+)`", page.read_text("utf-8")))
        left = list(expected)
        for block in blocks(page):
            if block.language == "python":
                (self.directory / next(names)).write_text(block.code)
                continue
            for command in _lines_of(block):
                if not skipped(command):
                    is_next = left and left[0][0] == command
                    self.run(command, left.pop(0)[1] if is_next else "")
        assert not left, f"{page.name} has no such commands in this order"
        assert not list(names), f"{page.name} names files whose code it does not show"

    def run(self, command: str, pattern: str = "") -> None:
        """Run a command, check its status, and wait until the pattern is in the output."""
        start = len(self.output)
        self._type(command)

        def is_shown() -> bool:
            if re.search(pattern, self.output[start:], re.MULTILINE):
                return True
            if _LOOK.match(command):
                self._type(command)
            return False

        until(f"{pattern!r} after {command!r}: {self.output[start:]}", is_shown, timeout=PATIENCE)

    def _type(self, command: str) -> None:
        before = len(self._lines)
        assert self._process.stdin is not None
        self._process.stdin.write(f'{command}\necho "{_PREFIX}$?"\n')
        self._process.stdin.flush()
        statuses = until(
            f"the end of {command!r}: {self.output}",
            lambda: [line for line in self._lines[before:] if _PREFIX in line],
            timeout=PATIENCE,
        )
        assert statuses[0].endswith(f"{_PREFIX}0"), "\n".join([command, *self._lines[before:]])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


def _lines_of(block: Block) -> Iterator[str]:
    """Yield commands without the comment after them."""
    for line in block.code.replace("\\\n", " ").splitlines():
        command = re.sub(r"\s+# .*", "", line).strip()
        if command:
            yield command


@contextmanager
def shell_session(directory: Path, **environment: str) -> Iterator[ShellSession]:
    """Start bash in the directory, which has the tests' environment as ``.venv``."""
    if not Path(sys.prefix, "bin", "activate").exists():
        pytest.skip(f"{sys.prefix} is no virtual environment with a script to activate it")
    (directory / ".venv").symlink_to(sys.prefix)
    isolated = [*_ISOLATED, *([] if os.geteuid() == 0 else ["--map-root-user"])]
    begin = "ip link set lo up && exec bash --noprofile --norc"
    try:
        subprocess.run([*isolated, "sh", "-c", "ip link set lo up"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", b"").decode().strip() or error
        pytest.skip(f"no network of its own for the shell ({shlex.join(isolated)}): {why}")
    process = subprocess.Popen(
        [*isolated, "sh", "-c", begin],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "TMPDIR": str(directory), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        session = ShellSession(process, directory)
        try:
            session.run("source .venv/bin/activate")
            yield session
        finally:
            session.close()
