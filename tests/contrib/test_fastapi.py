"""examples/web/fastapi_app.py under a real uvicorn: requests publish, and a consumer runs beside them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nsq.testing import Nsqd
from tests.integration.consuming import channel_of, clients_of

from .conftest import ROOT

PATIENCE = 90.0


class Uvicorn:
    """A running uvicorn with a copy of the example."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, app: Path) -> None:
        self.process, self._output, self.app = process, output, app

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        began = time.monotonic()
        while not (value := condition()):
            assert time.monotonic() < began + PATIENCE, f"{what}: not within {PATIENCE:g} s\n{self.output}"
            assert self.process.poll() is None, self.output
            time.sleep(0.05)
        return value

    def order(self, number: int) -> None:
        """Post an order, as soon as the application answers."""
        address = self.until("an address", lambda: re.search(r"running on (http://\S+)", self.output))[1]
        request = urllib.request.Request(
            f"{address}/orders",
            json.dumps({"order": number, "amount": 20}).encode(),
            {"content-type": "application/json"},
        )

        def post() -> bool:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                    return bool(reply.status == 202)
            except OSError:  # a process that is being replaced
                return False

        self.until(f"order {number}", post)

    def billed(self, number: int) -> int:
        """Wait until an order is billed; return the process that did it."""
        pattern = rf"billed order {number} in process (\d+)"
        return int(self.until(pattern, lambda: re.search(pattern, self.output))[1])


@contextmanager
def serving(nsqd: Nsqd, directory: Path, *options: str) -> Iterator[Uvicorn]:
    """Run uvicorn; check that SIGTERM ends it and that it has nothing to complain about."""
    app = directory / "app" / "fastapi_app.py"
    app.parent.mkdir()
    app.write_text((ROOT / "examples" / "web" / "fastapi_app.py").read_text())
    output = directory / "output"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NSQD": nsqd.tcp_address,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(app.parent), "--port", "0", *options]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, "fastapi_app:app"], cwd=app.parent, env=environment, stdout=file, stderr=file
        )
    uvicorn = Uvicorn(process, output, app)
    try:
        yield uvicorn
        process.send_signal(signal.SIGTERM)
        # uvicorn raises the signal again when it has shut down.
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM), uvicorn.output
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert "Traceback" not in uvicorn.output, uvicorn.output
    assert "Application shutdown complete" in uvicorn.output
    assert clients_of(nsqd) == []
    assert channel_of(nsqd)["in_flight_count"] == 0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_requests_publish_and_the_consumer_beside_them_handles(nsqd: Nsqd, tmp_path: Path, loop: str) -> None:
    with serving(nsqd, tmp_path, "--loop", loop) as uvicorn:
        uvicorn.order(1)
        assert uvicorn.billed(1) == uvicorn.process.pid


def test_every_worker_has_a_consumer_and_a_killed_worker_is_replaced(nsqd: Nsqd, tmp_path: Path) -> None:
    with serving(nsqd, tmp_path, "--workers", "2") as uvicorn:
        uvicorn.until("two consumers", lambda: len(clients_of(nsqd)) == 2)
        uvicorn.order(1)
        killed = uvicorn.billed(1)
        os.kill(killed, signal.SIGKILL)
        uvicorn.until("a lost consumer", lambda: uvicorn.output.count("Application startup complete") == 3)
        uvicorn.until("two consumers", lambda: len(clients_of(nsqd)) == 2)
        uvicorn.order(2)
        assert uvicorn.billed(2) not in (killed, uvicorn.process.pid)


def test_a_reload_closes_the_old_process_cleanly(nsqd: Nsqd, tmp_path: Path) -> None:
    with serving(nsqd, tmp_path, "--reload") as uvicorn:
        uvicorn.order(1)
        old = uvicorn.billed(1)
        uvicorn.app.write_text(uvicorn.app.read_text() + "\n# changed\n")
        uvicorn.until("a reload", lambda: uvicorn.output.count("Application startup complete") == 2)
        assert uvicorn.output.count("Application shutdown complete") == 1
        uvicorn.order(2)
        assert uvicorn.billed(2) != old
