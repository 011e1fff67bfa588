"""Runs a tool, in this process or in its own, and ends it by signals."""

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
    """Send this process the signal when the condition holds, for a tool that runs in the main thread.

    The tool itself must make the condition true, so that it already waits for signals then.
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
    """Run a process in the block; kill it at the end if it still runs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(tool_command(tool, *arguments), env=environment, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a function that runs a tmux command and returns its output; ends tmux after the test."""
    if shutil.which("tmux") is None:
        pytest.skip("not run: there is no tmux")

    def tmux(*arguments: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout

    yield tmux
    tmux("kill-server")
