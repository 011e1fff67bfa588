"""The setting ``NSQ``: read, checked, and with defaults."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from nsq.config import Config
from nsq.errors import NsqError
from nsq.transport.addresses import checked, checked_nsqds
from nsq.transport.base import Transport

_KEYS = ("NSQD", "NSQLOOKUPD", "BACKEND", "ON_COMMIT_TIMEOUT", "OPTIONS", "TRANSPORT")
#: Publishes to nsqd; the other one, for tests, is ``nsq.contrib.django.locmem``.
NSQD_BACKEND = "nsq.contrib.django.publishing"


@dataclass(frozen=True, kw_only=True)
class Settings:
    nsqd: tuple[str, ...] = ()
    nsqlookupd: tuple[str, ...] = ()
    backend: str = NSQD_BACKEND
    #: Seconds for all publishes after one commit, while a user waits for the response.
    on_commit_timeout: float = 2.0
    #: From OPTIONS: for the producer, and for consumers that say nothing else.
    config: Config = field(default_factory=Config)
    #: For the producer and all consumers; None: TCP and Unix sockets.
    transport: Transport | None = None


def read_settings() -> Settings:
    """Return the setting NSQ. Raises ImproperlyConfigured with the key and the value that is wrong."""
    given = getattr(settings, "NSQ", None)
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(
            f"the setting NSQ is {given!r}; it must be a dictionary, such as {{'NSQD': ['10.0.0.2:4150']}}"
        )
    for key in given:
        if key not in _KEYS:
            close = difflib.get_close_matches(str(key).upper(), _KEYS, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_KEYS)}"
            raise ImproperlyConfigured(f"the setting NSQ has the unknown key {key!r}: {hint}")
    read = Settings(
        nsqd=_addresses(given, "NSQD"),
        nsqlookupd=_addresses(given, "NSQLOOKUPD"),
        backend=_backend(given),
        on_commit_timeout=_seconds(given),
        config=_config(given),
        transport=_transport(given),
    )
    if read.backend == NSQD_BACKEND and not read.nsqd and not read.nsqlookupd:
        raise ImproperlyConfigured("the setting NSQ has no addresses: give 'NSQD' or 'NSQLOOKUPD', or both")
    return read


def _addresses(given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    try:
        addresses = given.get(key, ())
        return checked_nsqds(addresses) if key == "NSQD" else checked("nsqlookupd", addresses)
    except (NsqError, TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"NSQ[{key!r}] is {given[key]!r}: {error}") from None


def _backend(given: Mapping[str, Any]) -> str:
    backend = given.get("BACKEND", NSQD_BACKEND)
    if not isinstance(backend, str):
        raise ImproperlyConfigured(f"NSQ['BACKEND'] is {backend!r}; it must be the name of a module")
    return backend


def _seconds(given: Mapping[str, Any]) -> float:
    seconds = given.get("ON_COMMIT_TIMEOUT", Settings.on_commit_timeout)
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, (int, float))
        or not (seconds >= 0.001 and math.isfinite(seconds))
    ):
        raise ImproperlyConfigured(
            f"NSQ['ON_COMMIT_TIMEOUT'] is {seconds!r}; it must be a number of seconds, from 0.001 up"
        )
    return float(seconds)


def _config(given: Mapping[str, Any]) -> Config:
    options = given.get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(f"NSQ['OPTIONS'] is {options!r}; it must be a dictionary")
    try:
        return Config(**options)
    except (NsqError, TypeError) as error:
        raise ImproperlyConfigured(f"NSQ['OPTIONS']: {error}") from None


def _transport(given: Mapping[str, Any]) -> Transport | None:
    transport = given.get("TRANSPORT")
    if transport is None or isinstance(transport, Transport):
        return transport
    raise ImproperlyConfigured(
        f"NSQ['TRANSPORT'] is {transport!r}; it must be an object with connect(address, *, timeout)"
    )
