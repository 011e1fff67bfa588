"""Asking one nsqlookupd which nsqds have a topic."""

from __future__ import annotations

from typing import Protocol

from nsq.api.interruptible import Interrupter
from nsq.api.nsqlookupd import NsqlookupdApi
from nsq.api.nsqlookupd_calls import nsqlookupd_address
from nsq.config import Config
from nsq.errors import ApiRefused
from nsq.transport.tls import context_of

_TOPIC_NOT_FOUND = "TOPIC_NOT_FOUND"


class Asker(Protocol):
    """Who asks nsqlookupds. All methods are called from any thread."""

    def ask(self, lookupd: str) -> frozenset[str]:
        """The addresses of the topic's nsqds; blocks, within a time, and raises NsqError."""

    def cancel(self) -> None:
        """Have every ``ask`` end early, those to come as well."""

    def abandon(self) -> None:
        """In a forked child: let go of what is under way, which is the parent's."""


class Lookups:
    """Asks over HTTP, or HTTPS: then with the ``tls`` settings made for nsqds, or, without such, verified
    with the public authorities. The ``auth_secret`` goes along where ``lookupd_authorization`` allows it.
    """

    def __init__(self, topic: str, config: Config) -> None:
        self._topic = topic
        self._config = config
        self._interrupter = Interrupter()

    def ask(self, lookupd: str) -> frozenset[str]:
        config = self._config
        encrypted = nsqlookupd_address(lookupd).scheme == "https"
        with self._interrupter.connecting() as connect:
            api = NsqlookupdApi(
                lookupd,
                authorization=config.auth_secret,
                authorize=config.lookupd_authorization,
                timeout=config.lookupd_poll_timeout,
                tls=context_of(config) if encrypted else None,
                connect=connect,
            )
            try:
                return frozenset(node.tcp_address for node in api.lookup(self._topic).producers)
            except ApiRefused as refusal:
                if refusal.code == _TOPIC_NOT_FOUND:
                    return frozenset()  # nobody has published to it yet
                raise

    def cancel(self) -> None:
        self._interrupter.interrupt()

    def abandon(self) -> None:
        self._interrupter.abandon()
