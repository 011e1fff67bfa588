"""The secret for the daemons' HTTP APIs (``--http-logins``): where it may be sent, where it is read from."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsq.errors import ConfigError

if TYPE_CHECKING:
    from nsq.http.message import Url

#: The environment variable from which programs take the secret.
VARIABLE = "NSQ_HTTP_SECRET"
#: To which addresses programs send the secret: those that the user gave, or also any that an nsqlookupd told.
GIVEN, ANY = SECRET_TO = ("given", "any")
#: What a login may do: look; or also change things, and see messages.
READ, ALL = ROLES = ("read", "all")


def login_line(name: str, role: str, secret: str) -> str:
    """Return the line of a login in the file of --http-logins, which holds only the secret's hash."""
    import hashlib

    return f"{name}:{role}:{hashlib.sha256(secret.encode()).hexdigest()}"


@dataclass(frozen=True)
class HttpSecret:
    """A secret, and the rule about where it may go.

    It goes to addresses that the user gave, and to this machine. An address that an nsqlookupd told may be
    anybody's: nsqlookupd takes registrations without a login. So it goes there only over TLS with a
    certificate of ``own_authorities``, which the user has chosen: of the public ones anybody gets a
    certificate. ``to`` ANY lifts all of this.
    """

    text: str = field(repr=False)
    to: str = GIVEN
    own_authorities: bool = False

    def __post_init__(self) -> None:
        if not self.text or any(not "!" <= character <= "~" for character in self.text):
            raise ConfigError(
                "the HTTP secret is empty, or has spaces, line breaks or characters beyond ASCII; "
                "make one with: nsq secret NAME"
            )

    def may_go_to(self, url: Url) -> bool:
        if not url.told or self.to == ANY:
            return True
        return is_this_machine(url) or (url.scheme == "https" and self.own_authorities)


def verifies(tls: ssl.SSLContext | None) -> bool:
    """Whether the user has given a context, and it checks certificates and names."""
    return tls is not None and tls.verify_mode is ssl.CERT_REQUIRED and tls.check_hostname


def is_this_machine(url: Url) -> bool:
    if url.socket_path or url.host == "localhost":
        return True
    import ipaddress

    try:
        address = ipaddress.ip_address(url.host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def secret_of_program(path: str, option: str = "--http-secret-file") -> str:
    """Return the secret in the file, or without one that of $NSQ_HTTP_SECRET; empty if there is none."""
    if not path:
        return os.environ.get(VARIABLE, "").strip()
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option} {path!r}: {error}") from None
    if not text:
        raise ConfigError(f"{option} {path!r} is empty")
    return text
