"""What one client may do where auth servers decide: its grant, asked for again when it expires."""

from __future__ import annotations

from collections.abc import Callable

from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.session.authorization import Grant
from nsq.daemons.nsqd.session.refusals import Refused
from nsq.wire.names import quoted

#: Asks an auth server about the holder of a secret and calls back with its grant. The client waits meanwhile.
Ask = Callable[[str, Callable[[Grant], None]], None]


class Permit:
    """``required`` is false for an nsqd without auth servers: everything is allowed then."""

    def __init__(self, required: bool, clock: Clock, ask: Ask) -> None:
        self.grant: Grant | None = None
        self._required = required
        self._clock = clock
        self._ask = ask
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
        """Act now if the client may, after asking again if what it was granted has expired."""
        if not self._required:
            act(*args)
            return
        if self.grant is None or not self.grant.rules:
            raise Refused("E_AUTH_FIRST", f"AUTH required before {verb}")

        def check(grant: Grant) -> None:
            self.grant = grant
            if not grant.allows(topic.decode(), channel.decode()):
                what = f"AUTH failed for {verb} on {quoted(topic)} {quoted(channel)}"
                raise Refused("E_UNAUTHORIZED", what)
            act(*args)

        if self.grant.expires <= self._clock.now():
            self._ask(self._secret, check)
        else:
            check(self.grant)
