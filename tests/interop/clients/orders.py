"""The protocol of every driver: JSON lines on stdin, and a JSON line on stdout for each.

    {"order": "publish", "name": "p1", ...}  ->  {"value": ...} or {"error": "SendError: ..."}

Imports the standard library only: each driver runs on the Python of its client's own environment, where this
project does not exist.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import IO, Any

LINE_LIMIT = 64 * 1024 * 1024
NAP = 0.005
"""Seconds between two polls: no client reports when it is connected."""


def answers() -> IO[bytes]:
    """The test's end of stdout. Whatever a client prints from now on goes to stderr."""
    ours = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return ours


def encode_answer(value: object) -> bytes:
    return json.dumps({"value": value}).encode() + b"\n"


def encode_error(error: BaseException) -> bytes:
    return json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n"


def decode(line: bytes) -> tuple[str, dict[str, Any]]:
    order = json.loads(line)
    return order.pop("order"), order


def bodies_of(encoded: list[str]) -> list[bytes]:
    return [base64.b64decode(body) for body in encoded]


class Treatment:
    """How a consumer answers what it receives, decided message by message.

    ``requeue_ms``: the first attempt is requeued with this delay. ``touch``: (seconds, how often) before it
    is finished; only for bodies that begin with "touch". ``ignore``: the first attempt of a body that begins
    with "ignore" is never answered. ``hold``: all but the first message stay unanswered until ``released``.
    """

    def __init__(
        self,
        *,
        requeue_ms: int | None = None,
        touch: tuple[float, int] | None = None,
        ignore: bool = False,
        hold: bool = False,
    ) -> None:
        self.requeue_ms = requeue_ms
        self.touch = touch
        self.ignore = ignore
        self.hold = hold
        self.received: list[tuple[str, int, float]] = []
        self.held: list[Any] = []

    def __call__(self, message: Any) -> str:
        """Note the message; "finish", "requeue", "touch", or "leave" for no answer now."""
        body, attempts = bytes(message.body), message.attempts
        self.received.append((base64.b64encode(body).decode(), attempts, time.monotonic()))
        if self.hold and len(self.received) > 1:
            self.held.append(message)
            return "leave"
        if self.ignore and attempts == 1 and body.startswith(b"ignore"):
            return "leave"
        if self.touch is not None and body.startswith(b"touch"):
            return "touch"
        return "finish" if self.requeue_ms is None or attempts > 1 else "requeue"

    def release(self) -> list[Any]:
        """Answer everything at once from now on; the caller answers the held messages."""
        self.hold = False
        held, self.held = self.held, []
        return held


async def until(holds: Callable[[], Any], what: str, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within:g} s")
        await asyncio.sleep(NAP)


async def serve(orders: dict[str, Callable[..., Awaitable[object]]]) -> None:
    """Carry out one order after the other until stdin ends; the client goes on between and during them."""
    out = answers()
    lines = asyncio.StreamReader(limit=LINE_LIMIT)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        name, arguments = decode(line)
        try:
            answer = encode_answer(await orders[name](**arguments))
        except Exception as error:
            answer = encode_error(error)
        out.write(answer)
        out.flush()
