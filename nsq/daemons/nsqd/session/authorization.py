"""What an auth server allows a client, and for how long: pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from nsq.errors import NsqError

_MAX_TTL = 2**31


class AuthError(NsqError):
    """An auth server could not be asked, or its answer is unusable. The text never holds the secret."""


@dataclass(frozen=True)
class Rule:
    """Permissions on the topics and channels that match. As in Go, a pattern may match anywhere in
    the name.
    """

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether SUB of that channel is allowed, or PUB, which is asked for with an empty channel."""
        needed = "subscribe" if channel else "publish"
        return (
            needed in self.permissions
            and self.topic.search(topic) is not None
            and any(pattern.search(channel) for pattern in self.channels)
        )


@dataclass(frozen=True)
class Grant:
    """An auth server's answer; ``expires`` is on the monotonic clock."""

    rules: tuple[Rule, ...]
    expires: float
    identity: str = ""
    identity_url: str = ""

    def allows(self, topic: str, channel: str) -> bool:
        return any(rule.allows(topic, channel) for rule in self.rules)


@dataclass(frozen=True)
class Credentials:
    """What is known of a client when an auth server is asked about it."""

    secret: str
    remote_ip: str
    tls: bool
    common_name: str

    def __repr__(self) -> str:
        return f"Credentials(secret=***, remote_ip={self.remote_ip!r}, tls={self.tls})"


class Authority(Protocol):
    """Asks an auth server and answers with its grant or the reason there is none: later, never from
    within ``ask``.
    """

    def ask(self, credentials: Credentials, answer: Callable[[Grant | AuthError], None]) -> None: ...


def parse_grant(body: bytes, now: float) -> Grant:
    """The grant in an auth server's JSON answer; ``AuthError`` says which part of it is wrong."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AuthError(f"the auth server's answer is not JSON: {error}") from None
    if not isinstance(answer, dict):
        raise AuthError("the auth server's answer is not a JSON object")
    ttl = answer.get("ttl")
    if type(ttl) is not int or not 0 < ttl <= _MAX_TTL:
        raise AuthError(f"the auth server's ttl is {ttl!r:.100}; it must be 1 to {_MAX_TTL} seconds")
    rules = tuple(_rule(entry) for entry in _list(answer, "authorizations"))
    return Grant(rules, now + ttl, _text(answer, "identity"), _text(answer, "identity_url"))


def _rule(entry: Any) -> Rule:
    if not isinstance(entry, dict):
        raise AuthError(f"an authorization is {entry!r}, not a JSON object")
    permissions = frozenset(str(permission) for permission in _list(entry, "permissions"))
    if unknown := permissions - {"subscribe", "publish"}:
        raise AuthError(f"unknown permission {sorted(unknown)[0]!r}; there are subscribe and publish")
    channels = tuple(_pattern(channel, "channel") for channel in _list(entry, "channels"))
    return Rule(_pattern(entry.get("topic") or "", "topic"), channels, permissions)


def _pattern(source: Any, what: str) -> re.Pattern[str]:
    try:
        return re.compile(source)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise AuthError(f"the {what} pattern {source!r:.100} does not compile: {error}") from None


def _list(entry: dict[str, Any], key: str) -> list[Any]:
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise AuthError(f"{key} is {value!r}, not a list")
    return value


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key) or ""
    return value if isinstance(value, str) else str(value)
