"""Requests of web pages of other sites to nsqd and nsqlookupd. nsqadmin has its own tests."""

from __future__ import annotations

import pytest

from nsq.daemons.nsqlookupd.http import routes
from nsq.daemons.nsqlookupd.registry import Registry
from nsq.daemons.serve.routes import HttpError, Request, Route
from nsq.daemons.serve.slices import Slices
from tests.unit.daemons.nsqd.http.api import Api

#: What a page may load from anywhere, because it changes nothing. /debug and peeks have rules of their own.
READS = {"/ping", "/info", "/stats", "/metrics", "/config/:opt", "/topics", "/channels", "/lookup", "/nodes"}
PUBLISHES = {"/pub", "/mpub", "/put", "/mput"}


def table(daemon: str, *, legacy_get: bool = True) -> list[Route]:
    if daemon == "nsqd":
        return Api(legacy_get=legacy_get).routes
    registry = Registry(inactive_after=300.0, tombstone_lifetime=45.0)
    return routes(registry, Slices(), lambda: 0.0, epoch=0.0, legacy_get=legacy_get)


def changes(daemon: str) -> list[Route]:
    return [route for route in table(daemon) if route.method != "GET" or not only_shows(route.path)]


def only_shows(path: str) -> bool:
    return path in READS or path.startswith("/debug") or path.endswith("/peek")


def refused(route: Route, headers: dict[str, str]) -> bool:
    """Whether the request is refused before its handler sees it."""
    request = Request(route.method, route.path, headers={"Host": "nsqd:4151", **headers})
    request.params = {"opt": "log_level"}
    try:
        made = route.handler(request)
    except HttpError as refusal:
        return (refusal.status, refusal.code) == (403, "CROSS_SITE_REQUEST")
    if hasattr(made, "close"):
        made.close()  # a coroutine that nothing awaits
    return False


@pytest.mark.parametrize("daemon", ["nsqd", "nsqlookupd"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://nsqd:8080"},
        {"Sec-Fetch-Site": "cross-site"},  # a link
        {"Origin": "https://evil.example"},  # from a page without https
        {"Origin": "http://nsqd:4151.evil.example"},
        {"Origin": "null"},
    ],
    ids=str,
)
def test_a_page_of_another_site_changes_nothing(daemon: str, headers: dict[str, str]) -> None:
    found = changes(daemon)
    assert len(found) >= 15
    assert [(route.method, route.path) for route in found if not refused(route, headers)] == []


@pytest.mark.parametrize("daemon", ["nsqd", "nsqlookupd"])
@pytest.mark.parametrize(
    "headers",
    [
        {"User-Agent": "curl/8.5.0", "Accept": "*/*"},
        # Go's tools and KEDA; Go's nsqadmin
        {"User-Agent": "Go-http-client/1.1", "Accept-Encoding": "gzip"},
        {
            "User-Agent": "nsqadmin v1.3.0",
            "Accept": "application/vnd.nsq; version=1.0",
            "Content-Length": "0",
        },
        {"User-Agent": "node", "Accept": "*/*", "Sec-Fetch-Mode": "cors"},
        # own pages: without https, with it, behind a proxy
        {"Origin": "http://nsqd:4151"},
        {"Origin": "https://nsqd:4152", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://nsqd.internal", "X-Forwarded-Host": "nsqd.internal"},
        {"Sec-Fetch-Site": "none"},  # typed into the address bar
    ],
    ids=str,
)
def test_programs_and_own_pages_may_change_everything(daemon: str, headers: dict[str, str]) -> None:
    assert [(route.method, route.path) for route in changes(daemon) if refused(route, headers)] == []


@pytest.mark.parametrize("daemon", ["nsqd", "nsqlookupd"])
def test_any_page_may_load_what_changes_nothing(daemon: str) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://dashboard.example"}
    found = [route for route in table(daemon) if route.method == "GET" and route.path in READS]
    assert len(found) > 4
    assert [route.path for route in found if refused(route, headers)] == []


@pytest.mark.parametrize(
    ("allowed", "origin", "may"),
    [
        ("https://shop.example", "https://shop.example", True),
        ("https://shop.example", "https://evil.example", False),
        ("https://shop.example", "http://shop.example", False),
        ("*", "https://evil.example", True),
        ("*", "null", True),
    ],
)
def test_pages_of_an_allowed_origin_may_publish_and_nothing_else(
    allowed: str, origin: str, may: bool
) -> None:
    api = Api(allow_pub_origins=(allowed,))
    for headers in ({"Origin": origin}, {"Origin": origin, "Sec-Fetch-Site": "cross-site"}):
        open_ = {each.path for each in api.routes if each.method != "GET" and not refused(each, headers)}
        assert open_ == (PUBLISHES if may else set())
