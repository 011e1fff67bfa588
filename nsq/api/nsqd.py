"""NsqdApi: everything nsqd's HTTP API can do, as blocking methods.

The requests and answers themselves are in ``nsqd_calls``, for those who must not block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nsq.api import nsqd_calls as calls
from nsq.api.blocking import DEFAULT_TIMEOUT, Connect, Sender
from nsq.api.nsqd_calls import NsqdInfo
from nsq.api.nsqd_stats import NsqdStats

if TYPE_CHECKING:
    import ssl


class NsqdApi:
    """The HTTP API of one nsqd: ``NsqdApi("10.0.0.7:4151").stats(topic="orders")``.

    ``address`` is ``host:port``, ``http://…``, ``https://…`` or ``unix:/path``. A method takes no longer than
    ``timeout`` seconds and raises ApiError when nsqd cannot be asked, ApiRefused when it says no. An nsqd
    that insists on TLS is asked again with TLS. Every call has a connection of its own, so one NsqdApi
    serves any number of threads, and there is nothing to close.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        tls: ssl.SSLContext | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._nsqd = calls.nsqd_address(address)
        self._ask = Sender(timeout=timeout, tls=tls, connect=connect, upgrade=True).ask

    def __repr__(self) -> str:
        return f"NsqdApi({str(self._nsqd)!r})"

    def ping(self) -> None:
        """Return when nsqd is well; ApiRefused says what ails it."""
        self._ask(calls.ping(self._nsqd))

    def info(self) -> NsqdInfo:
        return self._ask(calls.info(self._nsqd))

    def stats(
        self, topic: str = "", channel: str = "", *, include_clients: bool = True, include_mem: bool = False
    ) -> NsqdStats:
        """Of everything, or of one topic, or one channel of it; nothing of what is not there."""
        wanted = calls.stats(
            self._nsqd, topic, channel, include_clients=include_clients, include_mem=include_mem
        )
        return self._ask(wanted)

    def publish(self, topic: str, body: bytes, *, defer: float = 0.0) -> None:
        """``defer`` holds the message back for so many seconds."""
        self._ask(calls.publish(self._nsqd, topic, body, defer=defer))

    def multi_publish(self, topic: str, bodies: Iterable[bytes]) -> None:
        self._ask(calls.multi_publish(self._nsqd, topic, bodies))

    def create_topic(self, topic: str) -> None:
        self._ask(calls.create_topic(self._nsqd, topic))

    def delete_topic(self, topic: str) -> None:
        """With its channels and all messages."""
        self._ask(calls.delete_topic(self._nsqd, topic))

    def empty_topic(self, topic: str) -> None:
        self._ask(calls.empty_topic(self._nsqd, topic))

    def pause_topic(self, topic: str) -> None:
        """Messages stay in the topic and reach no channel."""
        self._ask(calls.pause_topic(self._nsqd, topic))

    def unpause_topic(self, topic: str) -> None:
        self._ask(calls.unpause_topic(self._nsqd, topic))

    def create_channel(self, topic: str, channel: str) -> None:
        """The topic must be there."""
        self._ask(calls.create_channel(self._nsqd, topic, channel))

    def delete_channel(self, topic: str, channel: str) -> None:
        """With all its messages."""
        self._ask(calls.delete_channel(self._nsqd, topic, channel))

    def empty_channel(self, topic: str, channel: str) -> None:
        self._ask(calls.empty_channel(self._nsqd, topic, channel))

    def pause_channel(self, topic: str, channel: str) -> None:
        """Messages stay in the channel and reach no consumer."""
        self._ask(calls.pause_channel(self._nsqd, topic, channel))

    def unpause_channel(self, topic: str, channel: str) -> None:
        self._ask(calls.unpause_channel(self._nsqd, topic, channel))

    def get_config(self, option: str) -> Any:
        """One of nsqd's options as it tells it: text, number, boolean or list; a time is in nanoseconds."""
        return self._ask(calls.get_config(self._nsqd, option))

    def set_config(self, option: str, value: object) -> Any:
        """Change ``log_level`` (text) or ``nsqlookupd_tcp_addresses`` (a list); gives the new value."""
        return self._ask(calls.set_config(self._nsqd, option, value))
