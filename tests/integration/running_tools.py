"""Running a tool, in this process or as one of its own, and ending it by signals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.consuming import until

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def signalled_when(condition: Callable[[], Any], number: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """This process gets the signal once the condition holds: for a tool that runs in the main thread.

    A condition can hold only while the tool waits for signals: something that it does must make it true.
    """

    def wait_and_signal() -> None:
        try:
            until("what the signal waits for", condition)
        finally:
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait_and_signal, name="signals")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def tool_command(tool: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", f"nsq.tools.{tool}", *arguments]


@contextmanager
def tool_process(tool: str, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Killed at the end if it still runs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(tool_command(tool, *arguments), env=environment, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs a command of tmux, whose server ends with the test; gives what it printed."""
    if shutil.which("tmux") is None:
        pytest.skip("not run: there is no tmux")

    def tmux(*arguments: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout

    yield tmux
    tmux("kill-server")
