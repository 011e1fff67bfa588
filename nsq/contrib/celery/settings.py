"""Reads the broker's URL and options: which nsqds or nsqlookupds, the client's Config, the secret.

    nsq://127.0.0.1:4150                       nsq://10.0.0.2,10.0.0.3:4150?msg_timeout=2m
    nsqs://SECRET@nsqd.example.com             nsq+lookupd://10.0.0.7:4161

kombu splits the last one at its ``+`` and hands over ``lookupd://10.0.0.7:4161``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

from nsq.config import Config
from nsq.errors import ConfigError
from nsq.transport.addresses import is_unix
from nsq.transport.base import Transport

_NSQD_PORT, _LOOKUPD_PORT = 4150, 4161

#: What kombu and Celery put into ``transport_options`` for themselves.
_OF_KOMBU = {
    "callback", "connect_retries_timeout", "connection_errors", "errback", "interval_max", "interval_start",
    "interval_step", "max_retries", "on_error", "polling_interval", "retry_errors", "timeout",
    "visibility_timeout",
}  # fmt: skip

#: Our defaults where they differ from the client's: no delay for the sake of throughput, no giving up and no
#: backing off (both are Celery's business), and a lost nsqd is dialed again within seconds.
_DEFAULTS: dict[str, Any] = {
    "low_latency": True,
    "max_attempts": 0,
    "max_backoff_duration": 0.0,
    "reconnect_max": 5.0,
    "low_rdy_idle_timeout": 2.0,
}


class Client(Protocol):
    """The attributes of a ``kombu.Connection`` that settings are read from."""

    hostname: str | None
    password: str | None
    port: int | None
    uri_prefix: str | None
    transport_cls: str
    ssl: Any
    alt: list[str]
    transport_options: dict[str, Any]


@dataclass(frozen=True)
class BrokerSettings:
    nsqds: tuple[str, ...]
    lookupds: tuple[str, ...]
    config: Config
    max_deaths: int
    """How often the process that runs a task may die before the task goes to the dead letters; 0: ever."""
    transport: Transport | None = None
    """How bytes move to and from nsqd, None for TCP and Unix sockets: ``transport_options["transport"]``."""


def split_secret(url: str) -> tuple[str, str | None]:
    """Return the URL without its userinfo, and the secret in it: ``nsq://SECRET@host`` or ``nsq://:SECRET@host``."""
    scheme, slashes, rest = url.rpartition("://")
    head, end, tail = _until_path(rest)
    userinfo, at, hosts = head.rpartition("@")
    if not at:
        return url, None
    return f"{scheme}{slashes}{hosts}{end}{tail}", unquote(userinfo.removeprefix(":")) or None


def _until_path(rest: str) -> tuple[str, str, str]:
    """Split at the first ``/`` or ``?``."""
    place = min((rest.index(mark) for mark in "/?" if mark in rest), default=len(rest))
    return rest[:place], rest[place : place + 1], rest[place + 1 :]


def settings_of(client: Client) -> BrokerSettings:
    """Raises ConfigError for an option or an address that is wrong; the message shows no secret."""
    urls = client.alt or [client.hostname or ""]
    nsqds: list[str] = []
    lookupds: list[str] = []
    texts: dict[str, str] = {}
    encrypted = client.transport_cls.startswith("nsqs") or bool(client.ssl)
    for text in urls:
        url, _ = split_secret(text)
        scheme, _, rest = url.rpartition("://")
        hosts, mark, tail = _until_path(rest)
        if mark == "/" and tail.partition("?")[0]:  # perhaps half of a secret
            raise ConfigError(
                "the broker's URL has a path; nsq knows none. Write a Unix socket as "
                "nsq://%2Frun%2Fnsqd.sock, and a / in a secret as %2F"
            )
        texts.update(parse_qsl(rest.partition("?")[2], keep_blank_values=True))
        encrypted = encrypted or scheme.startswith("nsqs")
        discovers = scheme.endswith("lookupd")
        port = _LOOKUPD_PORT if discovers else (client.port if not scheme and client.port else _NSQD_PORT)
        wanted = [_address(unquote(host), port) for host in (hosts or "127.0.0.1").split(",") if host]
        (lookupds if discovers else nsqds).extend(wanted)
    values = {name: value for name, value in client.transport_options.items() if name not in _OF_KOMBU}
    max_deaths = _max_deaths(texts, values)
    transport = _transport(values)
    options = _DEFAULTS | _from_ssl(client.ssl) | _parsed(texts) | values
    if client.password:
        options["auth_secret"] = client.password
    if encrypted:
        options.setdefault("tls", True)
    return BrokerSettings(
        tuple(dict.fromkeys(nsqds)), tuple(dict.fromkeys(lookupds)), Config(**options), max_deaths, transport
    )


def _address(host: str, port: int) -> str:
    bare = host.endswith("]") if host.startswith("[") else ":" not in host
    return f"{host}:{port}" if bare and not is_unix(host) else host


def _parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a URL's query, which are text, as values."""
    config = Config.from_strings(texts)
    given = {name.replace("-", "_") for name in texts}
    return {
        field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name in given
    }


def _max_deaths(texts: dict[str, str], values: dict[str, Any]) -> int:
    given = values.pop("max_deaths", texts.pop("max_deaths", "5"))
    try:
        number = int(given)
    except (TypeError, ValueError):
        number = -1
    if number < 0 or isinstance(given, bool):
        raise ConfigError(f"max_deaths is {given!r}; it must be a whole number from 0 up")
    return number


def _transport(values: dict[str, Any]) -> Transport | None:
    transport = values.pop("transport", None)
    if transport is None or isinstance(transport, Transport):
        return transport
    raise ConfigError(f"transport is {transport!r}; it must be an object with connect(address, *, timeout)")


def _from_ssl(ssl: Any) -> dict[str, Any]:
    """Translate Celery's ``broker_use_ssl``: True, a dictionary with the usual names, or an SSLContext."""
    if not isinstance(ssl, dict):
        return {"tls": ssl} if ssl else {}
    names = {
        "ca_certs": "tls_ca_file",
        "certfile": "tls_cert_file",
        "keyfile": "tls_key_file",
        "cert_reqs": "tls_verify",
    }
    if unknown := ssl.keys() - names.keys():
        raise ConfigError(f"broker_use_ssl has {sorted(unknown)}; known are {sorted(names)}")
    options = {"tls": True} | {names[name]: value for name, value in ssl.items()}
    if "cert_reqs" in ssl:
        options["tls_verify"] = ssl["cert_reqs"] != 0  # ssl.CERT_NONE
    return options
