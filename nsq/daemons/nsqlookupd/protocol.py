"""One nsqd's conversation with nsqlookupd: bytes in, bytes out, and the registry changed on the way.

Pure: knows no socket; time is an argument. Every error is answered and then ends the conversation.
"""

from __future__ import annotations

from collections.abc import Callable

from nsq.daemons.nsqlookupd.registry import Peer, Registry
from nsq.errors import WireError
from nsq.wire import lookup
from nsq.wire.lookup import Body, Command, LookupCommandParser, PeerInfo, Violation
from nsq.wire.names import valid_channel, valid_topic


class _Refusal(Exception):
    """Carries the answer after which the connection is closed."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


class LookupSession:
    """``tell`` takes what is worth a log line, as a %-format and its arguments."""

    def __init__(
        self,
        registry: Registry,
        remote_address: str,
        own_info: Callable[[], PeerInfo],
        tell: Callable[..., None],
    ) -> None:
        self._registry = registry
        self._remote_address = remote_address
        self._own_info = own_info
        self._tell = tell
        self._parser = LookupCommandParser()
        self._peer: Peer | None = None
        self.over = False

    @property
    def identified(self) -> bool:
        return self._peer is not None

    def feed(self, data: bytes, now: float) -> bytes:
        """The answers to what arrived. Once ``over``, the connection is to be closed behind them."""
        if self.over:
            return b""
        answers = []
        try:
            for event in self._parser.feed(data):
                answer = self._answer(event, now)
                if answer is not None:
                    answers.append(lookup.reply(answer))
        except _Refusal as refusal:
            self.over = True
            self._tell("client(%s): refused: %r", self._remote_address, refusal.answer)
            answers.append(lookup.reply(refusal.answer))
        return b"".join(answers)

    def lost(self) -> None:
        """The connection is gone, and with it everything its nsqd registered."""
        self.over = True
        peer, self._peer = self._peer, None
        if peer is not None:
            self._registry.disconnect(peer)
            self._tell("client(%s): gone, its registrations removed", self._remote_address)

    def _answer(self, event: lookup.Event, now: float) -> bytes | None:
        match event:
            case Violation(answer):
                raise _Refusal(answer)
            case Body(data):
                return self._identify(data, now)
            case Command(b"IDENTIFY"):
                if self._peer is not None:
                    raise _Refusal(b"E_INVALID cannot IDENTIFY again")
                return None
            case Command(b"PING"):
                if self._peer is not None:
                    self._peer.last_update = now
                return lookup.OK
            case Command(b"REGISTER", params):
                return self._register(*self._subject(b"REGISTER", params))
            case Command(b"UNREGISTER", params):
                return self._unregister(*self._subject(b"UNREGISTER", params))
            case Command(name):
                raise _Refusal(b"E_INVALID invalid command " + name)

    def _identify(self, body: bytes, now: float) -> bytes:
        try:
            info = lookup.parse_peer_info(body)
        except WireError:
            raise _Refusal(b"E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        if not info.complete:
            raise _Refusal(b"E_BAD_BODY IDENTIFY missing fields")
        self._peer = Peer(info, self._remote_address, now)
        self._registry.connect(self._peer)
        self._tell(
            "client(%s): IDENTIFY %r, TCP port %d, HTTP port %d, version %r",
            self._remote_address,
            info.broadcast_address,
            info.tcp_port,
            info.http_port,
            info.version,
        )
        return lookup.identify_reply(self._own_info())

    def _subject(self, command: bytes, params: tuple[bytes, ...]) -> tuple[Peer, str, str | None]:
        if self._peer is None:
            raise _Refusal(b"E_INVALID client must IDENTIFY")
        if not params:
            raise _Refusal(b"E_INVALID %b insufficient number of params" % command)
        topic, channel = params[0], params[1] if len(params) > 1 else b""
        if not valid_topic(topic):
            raise _Refusal(b"E_BAD_TOPIC %b topic name '%b' is not valid" % (command, topic))
        if channel and not valid_channel(channel):
            raise _Refusal(b"E_BAD_CHANNEL %b channel name '%b' is not valid" % (command, channel))
        return self._peer, topic.decode("ascii"), channel.decode("ascii") or None

    def _register(self, peer: Peer, topic: str, channel: str | None) -> bytes:
        if channel is None:
            self._registry.register_topic(peer, topic)
        else:
            self._registry.register_channel(peer, topic, channel)
        self._tell("client(%s): REGISTER %s %s", self._remote_address, topic, channel or "")
        return lookup.OK

    def _unregister(self, peer: Peer, topic: str, channel: str | None) -> bytes:
        if channel is None:
            self._registry.unregister_topic(peer, topic)
        else:
            self._registry.unregister_channel(peer, topic, channel)
        self._tell("client(%s): UNREGISTER %s %s", self._remote_address, topic, channel or "")
        return lookup.OK
