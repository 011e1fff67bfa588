"""The permissions that an auth server grants a client, and for how long. Pure.

A grant can have thousands of rules. Parsing and applying them are generators, which yield after each step so
that the event loop can serve others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.session.stream import Refused
from nsq.errors import NsqError
from nsq.wire.identify import values_of
from nsq.wire.names import quoted

if TYPE_CHECKING:  # only an nsqd with auth servers compiles patterns
    from nsq.daemons.nsqd.patterns import Pattern

_MAX_TTL = 2**31
#: Cached decisions of one grant.
_MAX_DECISIONS = 1000
#: The most steps of all patterns in one grant, and in the cache of patterns. A step takes some 100 bytes, and
#: a pattern of 70 characters can have 10,000 steps.
MAX_STEPS = 500_000


class AuthError(NsqError):
    """Asking an auth server failed, or its reply is invalid. The text never holds the secret."""


@dataclass(frozen=True)
class Rule:
    """Permissions on matching topics and channels. As in Go, a pattern may match anywhere in the name."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: frozenset[str]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether the rule allows SUB to the channel, or PUB if ``channel`` is empty."""
        needed = "subscribe" if channel else "publish"
        return (
            needed in self.permissions
            and self.topic.search(topic)
            and any(pattern.search(channel) for pattern in self.channels)
        )


@dataclass(frozen=True)
class Grant:
    """An auth server's reply; ``expires`` is on the monotonic clock."""

    rules: tuple[Rule, ...]
    expires: float
    identity: str = ""
    identity_url: str = ""
    ttl: float = field(default=0.0, compare=False)
    #: Steps of its patterns, a measure of its memory.
    steps: int = field(default=0, compare=False)
    #: Cached decisions by topic and channel; clients with the same reply share them.
    decisions: dict[tuple[str, str], bool] = field(default_factory=dict, compare=False, repr=False)

    def decide(self, topic: str, channel: str) -> Generator[None, None, bool]:
        """Find out whether the rules allow it, and cache the result in ``decisions``."""
        allowed = False
        for rule in self.rules:
            if rule.allows(topic, channel):
                allowed = True
                break
            yield
        if len(self.decisions) >= _MAX_DECISIONS:
            self.decisions.clear()
        self.decisions[topic, channel] = allowed
        return allowed

    def renewed(self, now: float) -> Grant:
        """Return the same grant with a new time of expiry."""
        return replace(self, expires=now + self.ttl)


@dataclass(frozen=True)
class Credentials:
    """The facts about a client that an auth server gets."""

    secret: str
    remote_ip: str
    tls: bool
    common_name: str

    def __repr__(self) -> str:
        return f"Credentials(secret=***, remote_ip={self.remote_ip!r}, tls={self.tls})"


class Authority(Protocol):
    """Decides what clients may do. It calls ``answer`` later, never before the method returns."""

    def ask(self, credentials: Credentials, answer: Callable[[Grant | AuthError], None]) -> None:
        """Ask an auth server; call ``answer`` with its grant, or with the error."""

    def decide(
        self, grant: Grant, topic: str, channel: str, answer: Callable[[Grant | AuthError], None]
    ) -> None:
        """Call ``answer`` with the same grant when ``decisions`` has the result."""


class Permit:
    """The permissions of one client with auth servers: its grant, renewed when it expires."""

    def __init__(
        self,
        required: bool,
        clock: Clock,
        ask: Callable[[str, Callable[[Grant], None]], None],
        decide: Callable[[Grant, str, str, Callable[[Grant], None]], None],
    ) -> None:
        """``ask`` and ``decide`` call back with a grant; the client waits meanwhile. ``required`` is false
        for an nsqd without auth servers, which allows everything.
        """
        self.grant: Grant | None = None
        self._required = required
        self._clock = clock
        self._ask = ask
        self._decide = decide
        self._secret = ""

    def authenticate(self, secret: str, then: Callable[[Grant], None]) -> None:
        if self.grant is not None:
            raise Refused("E_INVALID", "AUTH already set")
        if not self._required:
            raise Refused("E_AUTH_DISABLED", "AUTH disabled")

        def granted(grant: Grant) -> None:
            self.grant = grant
            if not grant.rules:
                raise Refused("E_UNAUTHORIZED", "AUTH no authorizations found")
            then(grant)

        self._secret = secret
        self._ask(secret, granted)

    def when_allowed(
        self, verb: str, topic: bytes, channel: bytes, act: Callable[..., None], *args: object
    ) -> None:
        """Call ``act`` if the client may, now or when the decision is known. Otherwise raise Refused."""
        if not self._required:
            act(*args)
            return
        if self.grant is None or not self.grant.rules:
            raise Refused("E_AUTH_FIRST", f"AUTH required before {verb}")
        wanted = topic.decode(), channel.decode()

        def check(grant: Grant) -> None:
            self.grant = grant
            allowed = grant.decisions.get(wanted)
            if allowed is None:
                self._decide(grant, *wanted, check)
            elif allowed:
                act(*args)
            else:
                what = f"AUTH failed for {verb} on {quoted(topic)} {quoted(channel)}"
                raise Refused("E_UNAUTHORIZED", what)

        if self.grant.expires <= self._clock.now():
            self._ask(self._secret, check)
        else:
            check(self.grant)


def parse_grant(body: bytes, now: float) -> Generator[None, None, Grant]:
    """Parse an auth server's JSON reply; ``AuthError`` names the invalid part."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AuthError(f"the auth server's answer is not JSON: {error}") from None
    if not isinstance(answer, dict):
        raise AuthError("the auth server's answer is not a JSON object")
    answer = values_of(answer, ("ttl", "authorizations", "identity", "identity_url"))
    ttl = answer.get("ttl")
    if type(ttl) is not int or not 0 < ttl <= _MAX_TTL:
        raise AuthError(f"the auth server's ttl is {ttl!r:.100}; it must be 1 to {_MAX_TTL} seconds")
    rules = []
    steps = 0
    for entry in _list(answer, "authorizations"):
        rule = yield from _rule(entry)
        steps += sum(pattern.steps for pattern in (rule.topic, *rule.channels))
        if steps > MAX_STEPS:
            raise AuthError(f"the patterns of the auth server's answer have more than {MAX_STEPS} steps")
        rules.append(rule)
        yield
    identity, url = _text(answer, "identity"), _text(answer, "identity_url")
    return Grant(tuple(rules), now + ttl, identity, url, ttl, steps)


def _rule(entry: Any) -> Generator[None, None, Rule]:
    if not isinstance(entry, dict):
        raise AuthError(f"an authorization is {entry!r}, not a JSON object")
    entry = values_of(entry, ("topic", "channels", "permissions"))
    permissions = frozenset(str(permission) for permission in _list(entry, "permissions"))
    if unknown := permissions - {"subscribe", "publish"}:
        raise AuthError(f"unknown permission {sorted(unknown)[0]!r}; there are subscribe and publish")
    channels = []
    for channel in _list(entry, "channels"):
        channels.append(_pattern(channel, "channel"))
        yield
    return Rule(_pattern(entry.get("topic") or "", "topic"), tuple(channels), permissions)


def _pattern(source: Any, what: str) -> Pattern:
    if not isinstance(source, str):
        raise AuthError(f"the {what} pattern {source!r:.100} is not text")
    from nsq.daemons.nsqd.patterns import BadPattern

    try:
        return _patterns.get(source)
    except BadPattern as error:
        raise AuthError(f"the {what} pattern {source!r:.100} does not compile: {error}") from None


class KnownPatterns:
    """A cache of compiled patterns. When they have too many steps together, it is cleared."""

    def __init__(self) -> None:
        self._patterns: dict[str, Pattern] = {}
        self.steps = 0

    def get(self, source: str) -> Pattern:
        """Return the compiled pattern. Raises BadPattern."""
        pattern = self._patterns.get(source)
        if pattern is None:
            from nsq.daemons.nsqd.patterns import Pattern

            pattern = Pattern(source)
            if self.steps + pattern.steps > MAX_STEPS:
                self._patterns.clear()
                self.steps = 0
            self._patterns[source] = pattern
            self.steps += pattern.steps
        return pattern


_patterns = KnownPatterns()


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
