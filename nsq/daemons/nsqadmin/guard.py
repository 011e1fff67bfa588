"""Access control: admin users, pages of other sites, the network of /config, headers of every reply.

Requests that change something or show messages are allowed only under host names that a stranger cannot own
(``sites`` says why), and under those of --allow-host.
"""

from __future__ import annotations

import gzip
import ipaddress
import json
import zlib
from collections.abc import Awaitable, Callable, Sequence

from nsq.daemons.nsqadmin.cluster import UpstreamError
from nsq.daemons.nsqadmin.options import NsqadminOptions, config_network
from nsq.daemons.serve.routes import Handler, HttpError, Reply, Request
from nsq.daemons.serve.sites import own_names, refuse_other_sites, unknown_name
from nsq.http.secret import ALL
from nsq.wire.identify import values_of

Json = dict[str, object]

#: Headers that browsers send.
_BROWSERS = ("Origin", "Sec-Fetch-Site")
MAX_BODY = 1024 * 1024
#: The smallest reply that is compressed.
_WORTH_COMPRESSING = 1400
_COMPRESSED_KINDS = ("application/json", "text/")


class Guard:
    def __init__(self, options: NsqadminOptions) -> None:
        self._has_logins = bool(options.http_logins)
        self._admins = frozenset(options.admin_users)
        self._header = options.acl_http_header
        cidr = options.allow_config_from_cidr
        self._network = config_network(cidr) if cidr else None
        self._strict = bool(options.allow_hosts)
        self._hosts = own_names(*options.allow_hosts)

    def is_admin(self, request: Request) -> bool:
        """Whether the user is an admin; without logins and --admin-user every user is."""
        if self._has_logins:
            return request.login is not None and request.login.role == ALL
        return not self._admins or request.headers.get(self._header, "") in self._admins

    def admin_only(self, handler: Handler) -> Handler:
        """Guard a handler that changes something or shows messages."""

        def checked(request: Request) -> Reply | Awaitable[Reply]:
            refuse_other_sites(request)
            self._refuse_strange_names(request)
            if not self.is_admin(request):
                raise HttpError(403, "FORBIDDEN")
            return handler(request)

        return checked

    def config_only(self, handler: Handler) -> Handler:
        def checked(request: Request) -> Reply | Awaitable[Reply]:
            refuse_other_sites(request)
            self._refuse_strange_names(request)
            if self._network is not None and not _lies_in(request.remote, self._network):
                raise HttpError(403, "FORBIDDEN")
            return handler(request)

        return checked

    def named(self, handler: Handler) -> Handler:
        """Guard any other handler: with --allow-host it refuses other host names too."""
        if not self._strict:
            return handler

        def checked(request: Request) -> Reply | Awaitable[Reply]:
            self._refuse_strange_names(request, browser=True)
            return handler(request)

        return checked

    def _refuse_strange_names(self, request: Request, *, browser: bool = False) -> None:
        headers = request.headers
        if not browser and request.method != "GET" and not any(map(headers.get, _BROWSERS)):
            return  # not a browser: browsers send an Origin with every request that is not a GET
        name = unknown_name(request, self._hosts)
        if name is not None:
            raise HttpError(403, f"UNKNOWN_HOST: start nsqadmin with --allow-host={name}")


def _lies_in(remote: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    if remote == "@":  # a Unix socket: a program on this machine
        return network.overlaps(ipaddress.ip_network("127.0.0.0/8")) if network.version == 4 else False
    address = ipaddress.ip_address(remote.rpartition(":")[0].strip("[]").partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address in network


# For every request and reply


async def json_body(request: Request) -> Json:
    body = await request.read(MAX_BODY, "BODY_TOO_BIG")
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}" if body else "EOF") from None
    if not isinstance(parsed, dict):
        raise HttpError(400, f"the body is a JSON {type(parsed).__name__}, not an object")
    return parsed


def text_in(body: Json, name: str) -> str:
    found = values_of(body, (name,)).get(name) or ""
    if not isinstance(found, str):
        raise HttpError(400, f"{name} is not a text but {type(found).__name__}")
    return found


def reply_with(shown: Json, failures: Sequence[str]) -> Reply:
    """Make the reply, with a message that names the failures."""
    message = f"WARNING: {'; '.join(dict.fromkeys(failures))}" if failures else ""
    return Reply.json({**shown, "message": message})


def finished(handler: Handler) -> Handler:
    """Wrap a handler: add security headers, compress the reply if the client accepts that, and reply 502 if
    every upstream failed.
    """

    async def answered(request: Request) -> Reply:
        try:
            made = handler(request)
            reply = made if isinstance(made, Reply) else await made
        except UpstreamError as error:
            raise HttpError(502, f"UPSTREAM_ERROR: {error}") from None
        return _compressed(request.headers.get("Accept-Encoding", ""), reply)

    return answered


def _compressed(accepted: str, reply: Reply) -> Reply:
    headers = (*reply.headers, ("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-cache"))
    kind = reply.content_type or ""
    compress = _encoder(accepted) if len(reply.body) > _WORTH_COMPRESSING else None
    if compress is None or not kind.startswith(_COMPRESSED_KINDS):
        return Reply(reply.body, reply.content_type, reply.status, headers)
    name, encode = compress
    headers += (("Content-Encoding", name), ("Vary", "Accept-Encoding"))
    return Reply(encode(reply.body), reply.content_type, reply.status, headers)


def _encoder(accepted: str) -> tuple[str, Callable[[bytes], bytes]] | None:
    wanted = {}
    for each in accepted.lower().split(","):
        name, _, quality = each.strip().partition(";")
        wanted[name.strip()] = quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    if wanted.get("gzip"):
        return "gzip", lambda data: gzip.compress(data, 4, mtime=0)
    if wanted.get("deflate"):
        return "deflate", lambda data: zlib.compress(data, 4)
    return None
