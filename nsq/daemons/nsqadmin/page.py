"""Serves the web page: one HTML file for every view, its script and its stylesheet."""

from __future__ import annotations

import hashlib
import html
import json
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqadmin.guard import Guard
from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.serve.routes import HttpError, Reply, Request

_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_ASSETS = ("nsqadmin.css", "nsqadmin.js", "icon.svg")


class Page:
    """The page's files. With --dev-static-dir they are read for each request, otherwise once."""

    def __init__(self, options: NsqadminOptions, guard: Guard) -> None:
        self._options = options
        self._guard = guard
        self._files: dict[str, bytes] = {}
        self._policy = _policy(options)

    def view(self, request: Request) -> Reply:
        """Return the page; its script chooses the view by the address."""
        versions = {name: hashlib.sha256(self._file(name)).hexdigest()[:12] for name in _ASSETS}
        options = self._options
        settings = {
            "version": COMPATIBLE_VERSION,
            "base": options.prefix,
            "admin": self._guard.is_admin(request),
            "lookupds": bool(options.lookupd_http_addresses),
            "graphite": options.graphite_url.rstrip("/") if not options.proxy_graphite else options.prefix,
            "graphite_enabled": bool(options.graphite_url),
        }
        text = self._file("nsqadmin.html").decode("utf-8")
        text = text.replace("{{settings}}", html.escape(json.dumps(settings)))
        text = text.replace("{{base}}", html.escape(options.prefix))
        for name, version in versions.items():
            text = text.replace(f"{{{{{name}}}}}", f"{name}?{version}")
        headers = (
            ("Content-Security-Policy", self._policy),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
        )
        return Reply(text.encode("utf-8"), "text/html", 200, headers)

    def asset(self, request: Request) -> Reply:
        name = request.params["asset"]
        if name not in _ASSETS:
            raise HttpError(404, "NOT_FOUND")
        return Reply(self._file(name), _KINDS[name.rpartition(".")[2]])

    def _file(self, name: str) -> bytes:
        if self._options.dev_static_dir:
            try:
                return (Path(self._options.dev_static_dir) / name).read_bytes()
            except OSError as error:
                raise HttpError(404, f"--dev-static-dir: {error}") from None
        if name not in self._files:
            self._files[name] = (resources.files(__package__) / "static" / name).read_bytes()
        return self._files[name]


def _policy(options: NsqadminOptions) -> str:
    """Make the Content-Security-Policy: the page uses only this server, and Graphite for pictures."""
    pictures = "'self'"
    if options.graphite_url and not options.proxy_graphite:
        parts = urlsplit(options.graphite_url)
        pictures += f" {parts.scheme}://{parts.netloc}"
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        f"img-src {pictures}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    )
