"""Finding nsqds through nsqlookupds, for producers that were given no fixed addresses or want more.

One thread for each nsqlookupd asks it again and again, so that one which swallows everything delays nobody.
What each said last counts until it says something else: an nsqlookupd that cannot be asked removes nothing.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from nsq.api.nsqlookupd import NsqlookupdApi
from nsq.config import Config
from nsq.errors import ApiError

log = logging.getLogger("nsq.producer")


class Addressed(Protocol):
    """Where what is found goes."""

    absence: str

    def set_addresses(self, addresses: Iterable[str]) -> None: ...


class _Apis:
    """The nsqlookupds' HTTP APIs; a wrong address is told when this is made."""

    def __init__(self, lookupds: Iterable[str], config: Config) -> None:
        self._apis = {
            address: NsqlookupdApi(
                address,
                authorization=config.auth_secret,
                authorize=config.lookupd_authorization,
                timeout=config.lookupd_poll_timeout,
            )
            for address in lookupds
        }

    def nodes(self, lookupd: str) -> list[str]:
        return [node.tcp_address for node in self._apis[lookupd].nodes()]


class Discovery:
    """``fixed`` addresses are always among those that are set. ``nodes`` asks one nsqlookupd for nsqds;
    ``chance`` spreads the clients out.
    """

    def __init__(
        self,
        lookupds: Iterable[str],
        config: Config,
        pool: Addressed,
        *,
        fixed: Iterable[str] = (),
        nodes: Callable[[str], Iterable[str]] | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._pool = pool
        self._fixed = tuple(fixed)
        self._chance = chance
        self._lookupds = tuple(lookupds)
        self._nodes = nodes or _Apis(self._lookupds, config).nodes
        self._lock = threading.Lock()  # guards all below
        self._found: dict[str, set[str]] = {}
        self._threads: list[threading.Thread] = []
        self._started = not self._lookupds
        self._stopping = threading.Event()

    def start(self) -> None:
        """Only the first call does anything."""
        if self._started:
            return
        with self._lock:
            if self._started:
                return
            self._started = True
            self._threads = [
                threading.Thread(
                    target=self._watch, args=(address,), name=f"nsq-producer-lookupd-{address}", daemon=True
                )
                for address in self._lookupds
            ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._started = True
        self._stopping.set()

    def join(self, deadline: float) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _watch(self, address: str) -> None:
        pause = self._config.reconnect_initial
        while not self._stopping.is_set():
            if self.ask(address):
                interval = self._config.lookupd_poll_interval
                pause = self._config.reconnect_initial
                wait = interval * (1 + self._config.lookupd_poll_jitter * self._chance())
            else:
                wait = pause * (0.5 + self._chance() / 2)
                pause = min(pause * 2, self._config.lookupd_poll_interval)
            self._stopping.wait(wait)

    def ask(self, address: str) -> bool:
        """One nsqlookupd, once; whether it answered."""
        try:
            found = set(self._nodes(address))
        except ApiError as fault:
            log.warning("nsqlookupd %s: %s", address, fault, extra={"nsqlookupd_address": address})
            self._pool.absence = str(fault)
            return False
        with self._lock:
            self._found[address] = found
            everyone = set(self._fixed).union(*self._found.values())
        self._pool.absence = f"nsqlookupd {address} lists none"
        self._pool.set_addresses(everyone)
        return True
