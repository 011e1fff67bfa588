"""Finding nsqds through nsqlookupds, for producers that were given no fixed addresses or want more.

One thread for each nsqlookupd asks it again and again, so that one which swallows everything delays nobody.
What each said last counts until it says something else: an nsqlookupd that cannot be asked removes nothing.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from nsq.api.interruptible import Interrupter
from nsq.api.nsqlookupd import NsqlookupdApi
from nsq.api.nsqlookupd_calls import nsqlookupd_address
from nsq.config import Config
from nsq.errors import ApiError
from nsq.transport.tls import context_of

log = logging.getLogger("nsq.producer")


class Addressed(Protocol):
    """Receives discovered addresses."""

    absence: str

    def set_addresses(self, addresses: Iterable[str]) -> None: ...


class _Apis:
    """The nsqlookupds' HTTP APIs; a wrong address is told when this is made.

    Over https the ``tls`` settings made for nsqds hold, or, without such, the public authorities.
    """

    def __init__(self, lookupds: Iterable[str], config: Config) -> None:
        self._config = config
        self._interrupter = Interrupter()
        self.interrupt = self._interrupter.interrupt
        self.abandon = self._interrupter.abandon
        encrypted = [nsqlookupd_address(each).scheme == "https" for each in lookupds]
        self._tls = context_of(config) if any(encrypted) else None

    def nodes(self, lookupd: str) -> list[str]:
        with self._interrupter.connecting() as connect:
            api = NsqlookupdApi(
                lookupd,
                authorization=self._config.auth_secret,
                authorize=self._config.lookupd_authorization,
                timeout=self._config.lookupd_poll_timeout,
                tls=self._tls,
                connect=connect,
            )
            return [node.tcp_address for node in api.nodes()]


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
        apis = _Apis(self._lookupds, config)
        self._interrupt = apis.interrupt
        self.abandon = apis.abandon
        self._nodes = nodes or apis.nodes
        self._lock = threading.Lock()  # guards all below
        self._found: dict[str, set[str]] = {}
        self.threads: list[threading.Thread] = []
        self.asks = bool(self._lookupds)
        self._started = not self._lookupds
        self._stopping = threading.Event()

    def start(self) -> None:
        """Only the first call does anything, unless it has failed."""
        if self._started:
            return
        with self._lock:
            if self._started:
                return
            for address in self._lookupds[len(self.threads) :]:
                thread = threading.Thread(
                    target=self._watch, args=(address,), name=f"nsq-producer-lookupd-{address}", daemon=True
                )
                thread.start()  # RuntimeError when there are no more threads: the next call goes on here
                self.threads.append(thread)
            self._started = True

    def stop(self) -> None:
        """End its threads. Does not wait."""
        self._started = True
        self._stopping.set()
        self._interrupt()

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
        except ApiError as error:
            self._failed(address, str(error))
            return False
        except Exception as error:
            # A thread that died would never find anything again.
            log.exception("asking nsqlookupd %s failed, which is a bug of ours", address)
            self._failed(address, repr(error))
            return False
        with self._lock:
            self._found[address] = found
            everyone = set(self._fixed).union(*self._found.values())
        self._pool.absence = f"nsqlookupd {address} lists none"
        self._pool.set_addresses(everyone)
        return True

    def _failed(self, address: str, reason: str) -> None:
        if not self._stopping.is_set():
            log.warning("nsqlookupd %s: %s", address, reason, extra={"nsqlookupd_address": address})
            self._pool.absence = reason
