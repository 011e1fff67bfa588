"""The test's side of a driver: a child process in which another client produces and consumes.

    with driver.producer(nsqd.tcp_address) as producer:
        producer.publish("orders", [b"one"])

Orders and answers are JSON lines (clients/orders.py), one at a time, each with a deadline; a driver that
misses one is ended, and the next test gets another.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from . import installed

PATIENCE = 90.0
"""Seconds for an order that names no time of its own."""

_CHUNK = 1 << 20
_TAIL = 2000


class DriverFailed(AssertionError):
    """The client failed, or its driver has ended."""


class Received(NamedTuple):
    body: bytes
    attempts: int
    at: float  # time.monotonic(), which parent and child share


class Driver:
    def __init__(self, client: str, directory: Path) -> None:
        self.client = client
        self._stderr = directory / f"{client}.stderr"
        self._process = installed.start(client, directory, self._stderr)
        self._numbers = itertools.count(1)
        self._unread = b""

    def ask(self, order: str, *, patience: float = PATIENCE, **arguments: Any) -> Any:
        """Give an order, return the value of its answer."""
        deadline = time.monotonic() + patience
        self._send(json.dumps({"order": order, **arguments}).encode() + b"\n", deadline)
        answer = json.loads(self._line(order, deadline))
        if "error" in answer:
            raise DriverFailed(f"{self.client} could not {order}: {answer['error']}{self._said()}")
        return answer["value"]

    @contextlib.contextmanager
    def producer(self, address: str, **options: Any) -> Iterator[Producer]:
        name = f"p{next(self._numbers)}"
        try:
            self.ask("produce", name=name, nsqd=address, options=options)
            yield Producer(self, name)
        finally:
            self._close(name)

    @contextlib.contextmanager
    def consumer(
        self,
        topic: str,
        *,
        nsqd: str | None = None,
        lookupd: str | None = None,
        channel: str = "interop",
        max_in_flight: int = 10,
        treatment: dict[str, Any] | None = None,
        **options: Any,
    ) -> Iterator[Consumer]:
        name = f"c{next(self._numbers)}"
        try:
            self.ask(
                "consume",
                name=name,
                topic=topic,
                channel=channel,
                nsqd=nsqd,
                lookupd=lookupd,
                max_in_flight=max_in_flight,
                treatment=treatment or {},
                options=options,
            )
            yield Consumer(self, name)
        finally:
            self._close(name)

    @property
    def gone(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """End the child by closing its stdin."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _close(self, name: str) -> None:
        if not self.gone:
            self.ask("close", name=name)

    def _send(self, data: bytes, deadline: float) -> None:
        if self._process.stdin is None or self._process.stdin.closed:
            raise DriverFailed(f"the driver of {self.client} is gone{self._said()}")
        descriptor = self._process.stdin.fileno()
        view = memoryview(data)
        try:
            while view:
                # Up to PIPE_BUF a writable pipe takes without blocking.
                if not select.select([], [descriptor], [], max(0.0, deadline - time.monotonic()))[1]:
                    raise self._ended("did not take its order in time")
                view = view[os.write(descriptor, view[: select.PIPE_BUF]) :]
        except BrokenPipeError:
            raise self._ended("ended") from None

    def _line(self, order: str, deadline: float) -> bytes:
        if self._process.stdout is None:
            raise DriverFailed(f"the driver of {self.client} has no stdout")
        descriptor = self._process.stdout.fileno()
        parts = [self._unread]
        while b"\n" not in parts[-1]:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise self._ended(f"did not answer {order!r} in time")
            part = os.read(descriptor, _CHUNK)
            if not part:
                raise self._ended(f"ended at {order!r}")
            parts.append(part)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line

    def _ended(self, what: str) -> DriverFailed:
        """End the driver: a late answer would be taken for that of the next order."""
        self.stop()
        return DriverFailed(f"the driver of {self.client} {what}{self._said()}")

    def _said(self) -> str:
        said = self._stderr.read_text(errors="replace")[-_TAIL:].strip()
        return f"; it said:\n{said}" if said else ""


class Drivers:
    """A driver for each installed client. One that has ended is replaced, and fails only its own test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, Driver] = {}

    def start(self) -> None:
        """Start all drivers together, and wait until each has imported its client."""
        for client in installed.CLIENTS:
            if installed.hindrance(client) is None:
                self._running[client] = Driver(client, self._directory)
        for driver in self._running.values():
            driver.ask("about")

    def required(self, client: str) -> Driver:
        """The client's driver; without one the test is skipped or fails, see ``installed``."""
        if client not in self._running:
            installed.refuse(client)
        if self._running[client].gone:
            self._running[client] = Driver(client, self._directory)
        return self._running[client]

    def running(self) -> Iterator[tuple[str, Driver]]:
        """Every installed client, with its driver."""
        for client in self._running:
            yield client, self.required(client)

    def stop(self) -> None:
        for driver in self._running.values():
            driver.stop()


class _Client:
    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name

    def _ask(self, order: str, **arguments: Any) -> Any:
        return self._driver.ask(order, name=self._name, **arguments)


class Producer(_Client):
    """A producer, whose publishing returns when nsqd has confirmed everything."""

    @property
    def connected(self) -> bool:
        """Whether the client says that it is connected."""
        return bool(self._ask("connected"))

    def publish(self, topic: str, bodies: list[bytes], *, patience: float = PATIENCE) -> None:
        """One PUB each, sent without waiting for one another's confirmation."""
        self._ask("publish", topic=topic, bodies=_encoded(bodies), patience=patience)

    def multi_publish(self, topic: str, bodies: list[bytes]) -> None:
        self._ask("multi_publish", topic=topic, bodies=_encoded(bodies))

    def defer(self, topic: str, bodies: list[bytes], delay: float) -> None:
        self._ask("defer", topic=topic, bodies=_encoded(bodies), delay_ms=round(delay * 1000))


class Consumer(_Client):
    def received(self, count: int, timeout: float = 60.0) -> list[Received]:
        """Return everything received so far, once that is at least ``count`` messages."""
        noted = self._ask("received", count=count, within=timeout, patience=timeout + 30)
        return [Received(base64.b64decode(body), attempts, at) for body, attempts, at in noted]

    def bodies(self, count: int, timeout: float = 60.0) -> list[bytes]:
        return sorted(each.body for each in self.received(count, timeout))

    def release(self) -> None:
        """Finish the held messages, and hold none from now on."""
        self._ask("release")


def _encoded(bodies: list[bytes]) -> list[str]:
    return [base64.b64encode(body).decode() for body in bodies]
