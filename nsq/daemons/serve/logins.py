"""--http-logins: who may use a daemon's HTTP API, and for what.

``nsq secret`` makes the secret of a login: 256 random bits. So a fast hash protects it, and a wrong login
cannot keep the event loop busy.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass

from nsq.daemons.serve.listen import Address, TcpAddress
from nsq.daemons.serve.logs import DaemonLog
from nsq.daemons.serve.routes import HttpError, Reply, Request
from nsq.daemons.serve.sites import on_this_machine, refuse_other_sites
from nsq.errors import ConfigError
from nsq.http.secret import ALL

_LINE = re.compile(r"([A-Za-z0-9._-]{1,64}):(read|all):([0-9a-f]{64})")
#: The reply to a request without a valid login: browsers and curl send Basic, programs Bearer.
_CHALLENGES = (("WWW-Authenticate", 'Basic realm="nsq", charset="UTF-8"'), ("WWW-Authenticate", "Bearer"))


@dataclass(frozen=True)
class Login:
    name: str
    role: str
    digest: str


def read_logins(path: str) -> tuple[Login, ...]:
    """Read the file of --http-logins. Raises ConfigError, which names the line but does not show it."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read().splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--http-logins {path!r}: {error}") from None
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"--http-logins {path!r} can be written by others than its owner: chmod go-w {path}"
        )
    logins: dict[str, Login] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = _LINE.fullmatch(line.strip())
        if parts is None:
            raise ConfigError(
                f"--http-logins {path!r}: line {number} is not name:role:sha256, with the role read or all: "
                "make one with `nsq secret NAME`"
            )
        login = Login(*parts.groups())
        if login.name in logins:
            raise ConfigError(f"--http-logins {path!r}: line {number} names {login.name} again")
        logins[login.name] = login
    if not logins:
        raise ConfigError(f"--http-logins {path!r} has no login: make one with `nsq secret NAME`")
    return tuple(logins.values())


class Gate:
    """Decides about each request of a daemon with --http-logins: None lets it through.

    ``may_read`` says whether the role read suffices; ``open_paths`` need no login; web pages of these
    ``origins`` may publish.
    """

    def __init__(
        self,
        path: str,
        log: DaemonLog,
        may_read: Callable[[Request], bool],
        *,
        open_paths: Collection[str] = (),
        origins: Collection[str] = (),
    ) -> None:
        self._path = path
        self._log = log
        self._may_read = may_read
        self._open = {"/ping", *open_paths}
        self._origins = origins
        self._logins = read_logins(path)

    def reload(self) -> None:
        """Read the file again. If that fails, keep the logins."""
        try:
            self._logins = read_logins(self._path)
        except ConfigError as error:
            self._log.error("%s; keeping the current logins", error)
        else:
            self._log.info("--http-logins %s: reloaded, %d logins", self._path, len(self._logins))

    def warn_of_plain_http(self, address: Address) -> None:
        if isinstance(address, TcpAddress) and not on_this_machine(str(address)):
            self._log.warning(
                "HTTP: %s takes logins over plain HTTP, where others can read the secrets: use it only in a "
                "trusted network, or through TLS",
                address,
            )

    def __call__(self, request: Request) -> Reply | None:
        if request.path in self._open and is_reading(request):
            return None
        header = request.headers.get("Authorization", "")
        login = self._login(header)
        if login is None:
            if header:
                self._log.warning("HTTP: %s %s from %s: wrong login", *_shown(request))
            return Reply.error(401, "UNAUTHORIZED", _CHALLENGES)
        if login.role != ALL and not self._may_read(request):
            self._log.warning(
                "HTTP: %s %s from %s: the login %s has only the role read", *_shown(request), login.name
            )
            return Reply.error(403, "FORBIDDEN")
        if not is_reading(request):
            # A browser adds a login that it knows to the requests of any site's pages.
            try:
                refuse_other_sites(request, self._origins)
            except HttpError as refusal:
                return Reply.error(refusal.status, refusal.code)
        request.login = login
        return None

    def _login(self, header: str) -> Login | None:
        """Return the login of an Authorization header. Compares with all logins, in constant time."""
        scheme, _, given = header.partition(" ")
        name: str | None = None
        secret = given.strip()
        if scheme.lower() == "basic":
            try:
                name, _, secret = base64.b64decode(secret, validate=True).decode().partition(":")
            except ValueError:
                return None
        elif scheme.lower() != "bearer":
            return None
        digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for login in self._logins:
            if hmac.compare_digest(login.digest, digest) and name in (None, login.name):
                found = login
        return found


def is_reading(request: Request) -> bool:
    return request.method in ("GET", "HEAD", "OPTIONS")


def _shown(request: Request) -> tuple[str, str, str]:
    return request.method, request.path, request.remote
