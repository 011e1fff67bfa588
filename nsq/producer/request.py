"""One publish as nsqd wants it, checked before anything is sent. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, cast

from nsq.config import Config
from nsq.errors import InvalidMessage, UsageError
from nsq.wire import commands
from nsq.wire.names import check_topic

#: The longest wait that threads can be asked for is far beyond this.
MAX_TIMEOUT = 10.0**9


class Request(NamedTuple):
    """``data`` is the command as it goes over the wire; ``size`` counts the bytes of the bodies."""

    topic: str
    messages: int
    size: int
    data: bytes


def publish_request(topic: str, body: object, defer: float | None, config: Config) -> Request:
    """PUB, or DPUB for a message that is to be delivered after ``defer`` seconds."""
    name = check_topic(topic)
    # What usually is right is seen here: this is done for every single message.
    if type(body) is not bytes or not 0 < len(body) <= config.max_msg_size:
        body = _checked_body(body, config, "the message")
    delay = 0 if defer is None else _checked_delay(defer, config.max_defer)
    command = commands.dpub(name, delay, body) if delay else commands.pub(name, body)
    return Request(name, 1, len(body), command)


def multi_publish_request(topic: str, bodies: Iterable[object], config: Config) -> Request:
    """MPUB."""
    name = check_topic(topic)
    if isinstance(bodies, (bytes, bytearray, memoryview, str)):
        raise UsageError(
            f"bodies is one {type(bodies).__name__}, must be several: a list, or another iterable"
        )
    if not isinstance(bodies, Iterable):
        raise UsageError(f"bodies is {bodies!r}, must be a list, or another iterable")
    checked = _checked_bodies(list(bodies), config)
    if not checked:
        raise UsageError("bodies is empty, must hold at least one message")
    size = sum(map(len, checked))
    limit = _batch_limit(config)
    packed = 4 + 4 * len(checked) + size
    if packed > limit:
        raise InvalidMessage(
            f"{len(checked)} messages take {packed} bytes together, must be at most {limit} "
            "(max_body_size, to be that of nsqd): publish them in smaller batches"
        )
    return Request(name, len(checked), size, commands.mpub(name, checked))


def checked_timeout(timeout: float | None, default: float, *, may_be_zero: bool = False) -> float:
    """In seconds; what is left out is the default. Zero is for those who need not wait."""
    if timeout is None:
        return default
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise UsageError(f"timeout is {timeout!r}, must be a number of seconds")
    if may_be_zero and timeout == 0:
        return 0.0
    if not 0 < timeout <= MAX_TIMEOUT:
        raise UsageError(f"timeout is {timeout!r}, must be more than 0 seconds and finite")
    return float(timeout)


def _checked_bodies(bodies: list[object], config: Config) -> list[bytes]:
    """The usual case, all of it bytes, at once: one by one takes ten times as long."""
    if set(map(type, bodies)) == {bytes}:
        checked = cast("list[bytes]", bodies)
        if min(map(len, checked)) > 0 and max(map(len, checked)) <= config.max_msg_size:
            return checked
    return [_checked_body(body, config, f"message {place}") for place, body in enumerate(bodies)]


def _checked_body(body: object, config: Config, what: str) -> bytes:
    if isinstance(body, str):
        raise InvalidMessage(f"{what} is a str, must be bytes: encode it, for example with .encode()")
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidMessage(f"{what} is a {type(body).__name__}, must be bytes")
    data = bytes(body)
    if not data:
        raise InvalidMessage(f"{what} is empty, must have at least one byte")
    if len(data) > config.max_msg_size:
        raise InvalidMessage(
            f"{what} has {len(data)} bytes, must have at most {config.max_msg_size} "
            "(max_msg_size, to be that of nsqd)"
        )
    return data


def _checked_delay(defer: float, longest: float) -> int:
    """In milliseconds."""
    if isinstance(defer, bool) or not isinstance(defer, (int, float)) or not math.isfinite(defer):
        raise InvalidMessage(f"defer is {defer!r}, must be a number of seconds")
    if not 0 <= defer <= longest:
        raise InvalidMessage(
            f"defer is {defer:g} s, must be 0 to {longest:g} s (max_defer, to be nsqd's --max-req-timeout)"
        )
    return round(defer * 1000)


def _batch_limit(config: Config) -> int:
    # An nsqd that was given a larger --max-msg-size has been given a larger --max-body-size with it.
    return max(config.max_body_size, config.max_msg_size + 8)
