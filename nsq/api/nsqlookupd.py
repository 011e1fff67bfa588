"""NsqlookupdApi: everything nsqlookupd's HTTP API can do, as blocking methods.

The requests and answers themselves are in ``nsqlookupd_calls``, for those who must not block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from nsq.api import nsqlookupd_calls as calls
from nsq.api.blocking import DEFAULT_TIMEOUT, Connect, Sender
from nsq.api.calls import Call, authorized
from nsq.api.nsqlookupd_calls import DebugEntry, Lookup, RegisteredNode

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")


class NsqlookupdApi:
    """The HTTP API of one nsqlookupd: ``NsqlookupdApi("10.0.0.7:4161").lookup("orders").producers``.

    ``address`` is ``host:port``, ``http://…``, ``https://…`` or ``unix:/path``; its path may be that of
    /lookup behind a proxy, and its query goes with every request. ``authorization`` is a secret sent as a
    Bearer header, over https only unless ``authorize`` is ``"always"``. Otherwise like NsqdApi.
    """

    def __init__(
        self,
        address: str,
        *,
        authorization: str | None = None,
        authorize: str = "https",
        timeout: float = DEFAULT_TIMEOUT,
        tls: ssl.SSLContext | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._lookupd = calls.nsqlookupd_address(address)
        self._authorization = authorization or ""
        self._authorize = authorize
        self._sender = Sender(timeout=timeout, tls=tls, connect=connect)

    def __repr__(self) -> str:
        return f"NsqlookupdApi({str(self._lookupd)!r})"

    def _ask(self, call: Call[T]) -> T:
        return self._sender.ask(authorized(call, self._authorization, self._authorize))

    def ping(self) -> None:
        self._ask(calls.ping(self._lookupd))

    def info(self) -> str:
        """Its version."""
        return self._ask(calls.info(self._lookupd))

    def topics(self) -> list[str]:
        return self._ask(calls.topics(self._lookupd))

    def channels(self, topic: str) -> list[str]:
        """Empty for a topic it does not know."""
        return self._ask(calls.channels(self._lookupd, topic))

    def lookup(self, topic: str) -> Lookup:
        """ApiRefused with the code TOPIC_NOT_FOUND for a topic it does not know."""
        return self._ask(calls.lookup(self._lookupd, topic))

    def nodes(self) -> list[RegisteredNode]:
        return self._ask(calls.nodes(self._lookupd))

    def debug(self) -> dict[str, list[DebugEntry]]:
        """All registrations, under ``category:topic:channel``."""
        return self._ask(calls.debug(self._lookupd))

    def create_topic(self, topic: str) -> None:
        self._ask(calls.create_topic(self._lookupd, topic))

    def delete_topic(self, topic: str) -> None:
        """Forget it; the nsqds that have it keep it, and register it again when they reconnect."""
        self._ask(calls.delete_topic(self._lookupd, topic))

    def create_channel(self, topic: str, channel: str) -> None:
        """And the topic."""
        self._ask(calls.create_channel(self._lookupd, topic, channel))

    def delete_channel(self, topic: str, channel: str) -> None:
        self._ask(calls.delete_channel(self._lookupd, topic, channel))

    def tombstone(self, topic: str, node: str) -> None:
        """Send no more consumers of the topic to an nsqd, named by its ``http_address``, for a while."""
        self._ask(calls.tombstone(self._lookupd, topic, node))
