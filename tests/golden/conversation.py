"""Replays a recorded TCP conversation step by step, and compares every byte that is not random.

Message ids and timestamps are random. A received id replaces the recorded one in everything that is sent and
expected later.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from nsq.testing.v2 import Frame, PeerClosed, V2Client

from .deviations import Case

FRAME_TYPES = {"response": 0, "error": 1, "message": 2}
#: How long "nothing" is waited for where the recording's time is not the point.
SHORT = 0.15
_NOTHING = re.compile(r"nothing within ([\d.]+)s")
_MESSAGE_ID = re.compile(rb"[0-9a-f]{16}")


class Mismatch(AssertionError):
    """A daemon did not do what was recorded."""


class Replay(Protocol):
    def __call__(self, case: Case, address: str) -> None: ...


def replay(case: Case, address: str) -> None:
    """One case on a connection of its own; raises Mismatch."""
    magic, *steps = case["steps"]
    with V2Client(address, magic=as_bytes(magic["send"])) as client:
        conversation = Conversation(client, exact_silence=_is_about_time(case))
        for number, step in enumerate(steps, start=2):
            conversation.follow(number, step)


def replay_all(cases: list[Case], address: str, replay: Replay = replay) -> Mapping[str, Exception | None]:
    """Replay every case against one daemon, many at once: most only wait. Return the errors by name."""

    def outcome(case: Case) -> Exception | None:
        try:
            replay(case, address)
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(12, thread_name_prefix="replay") as pool:
        return dict(zip([case["case"] for case in cases], pool.map(outcome, cases), strict=True))


class Conversation:
    """The state of one replay: the connection, and the ids seen so far."""

    def __init__(self, client: V2Client, *, exact_silence: bool = False) -> None:
        self.client = client
        self._exact_silence = exact_silence
        self._since = time.monotonic()  # before that the daemon has not begun to count for what comes next
        self._ids: dict[bytes, bytes] = {}  # recorded -> received

    def follow(self, number: int, step: Mapping[str, Any]) -> None:
        try:
            if "send" in step:
                self._send(as_bytes(step["send"]))
            elif "recv" in step:
                self._receive(step["recv"])
        except Exception as error:
            raise Mismatch(f"step {number} {dict(step)!r}: {error}") from error

    def _send(self, data: bytes) -> None:
        for recorded, received in self._ids.items():
            data = data.replace(recorded, received)
        self._since = time.monotonic()
        with contextlib.suppress(PeerClosed):  # the next step says whether the daemon was to close
            self.client.send(data)

    def _receive(self, expected: Any) -> None:
        if isinstance(expected, str) and expected.startswith("EOF"):
            self.client.expect_closed()
        elif isinstance(expected, str):
            found = _NOTHING.fullmatch(expected)
            if found is None:
                raise ValueError(f"the recording holds a step this replay does not know: {expected}")
            self._silence(float(found[1]))
        elif "message" in expected:
            self._message(expected, self.client.frame())
            self._since = time.monotonic()
        else:
            self._answer(expected, self.client.frame())

    def _silence(self, recorded: float) -> None:
        """Wait without a reply as the recorded client did, measured from the recorded moment: this test may
        be late.
        """
        left = self._since + recorded - time.monotonic() if self._exact_silence else SHORT
        if left > 0:
            self.client.expect_silence(left)

    def _answer(self, expected: Mapping[str, Any], frame: Frame) -> None:
        data = compact(expected["json"]) if "json" in expected else as_bytes(expected["data"])
        for recorded, received in self._ids.items():
            data = data.replace(recorded, received)
        _equal("frame", frame, (FRAME_TYPES[expected["frame_type"]], data))
        _equal("frame size", len(frame.data) + 4, expected["size"])

    def _message(self, expected: Mapping[str, Any], frame: Frame) -> None:
        _equal("frame type", frame.type, FRAME_TYPES["message"])
        _equal("frame size", len(frame.data) + 4, expected["size"])
        recorded, message = expected["message"], frame.message
        _equal("attempts", message.attempts, recorded["attempts"])
        _equal("body", message.body, as_bytes(recorded["body"]))
        if not _MESSAGE_ID.fullmatch(message.id):
            raise Mismatch(f"the message id {message.id!r} is not 16 hexadecimal digits")
        _equal("id", message.id, self._ids.setdefault(as_bytes(recorded["id"]), message.id))


def compact(value: Any) -> bytes:
    """JSON as the daemons write it, keys in the order given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def as_bytes(text: str) -> bytes:
    return text.encode("latin-1")


def _is_about_time(case: Case) -> bool:
    """Whether the case delivers messages: it tests delays and timeouts, so the recorded silence matters."""
    return any(isinstance(step.get("recv"), dict) and "message" in step["recv"] for step in case["steps"])


def _equal(what: str, found: object, recorded: object) -> None:
    if found != recorded:
        raise Mismatch(f"{what}: got {found!r}, recorded {recorded!r}")
