from __future__ import annotations

import json
import re
from typing import Any

import certifi
import pytest

from nsq.config import Config
from nsq.errors import ApiError, InvalidName, UsageError
from nsq.http import nsqlookupd
from nsq.http.calls import Call
from nsq.http.message import HttpReply, HttpRequest, Url
from nsq.http.nsqlookupd import NsqdNode, NsqlookupdApi, RegisteredNode

#: A file of authorities that a user may have chosen.
CA = certifi.where()


class Calls(NsqlookupdApi):
    """Gives the call itself, not its answer."""

    def _ask(self, method: str, url: Url, parse: Any, body: bytes = b"") -> Any:
        return Call(HttpRequest(url, method, self._headers, body, self._secret), parse)


calls: Any = Calls("lookupd.example")
NODE = {
    "remote_address": "127.0.0.1:47222",
    "hostname": "vm",
    "broadcast_address": "10.0.0.7",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
    "topology_zone": "z",
    "topology_region": "r",
}


def target(call: Call[Any]) -> str:
    return call.request.url.target


def answer(call: Call[Any], value: object) -> Any:
    return call.answer(HttpReply(200, {}, json.dumps(value).encode()))


@pytest.mark.parametrize(
    ("address", "url", "sent"),
    [
        ("h", "http://h:4161/lookup", "/lookup?topic=t"),
        ("h:4161", "http://h:4161/lookup", "/lookup?topic=t"),
        ("http://h:4161/", "http://h:4161/lookup", "/lookup?topic=t"),
        ("http://h:4161/lookup", "http://h:4161/lookup", "/lookup?topic=t"),
        ("https://h/nsq/lookup?k=v", "https://h/nsq/lookup", "/nsq/lookup?k=v&topic=t"),
        ("https://h/own/path/?k=v", "https://h/own/path/", "/own/path/?k=v&topic=t"),
        ("http://h:1?k=v", "http://h:1/lookup", "/lookup?k=v&topic=t"),
        ("[::1]:4161", "http://[::1]:4161/lookup", "/lookup?topic=t"),
        ("unix:/run/l.sock", "unix:/run/l.sock:/lookup", "/lookup?topic=t"),
    ],
)
def test_a_lookup_is_sent_to_the_given_path_or_to_lookup(address: str, url: str, sent: str) -> None:
    call = Calls(address).lookup("t")
    assert (str(call.request.url), target(call)) == (url, sent)


@pytest.mark.parametrize(
    ("address", "sent"),
    [
        ("h", "/nodes"),
        ("http://h:4161/lookup", "/nodes"),
        ("https://h/nsq/lookup?k=v", "/nsq/nodes?k=v"),
        ("https://h/nsq?k=v", "/nsq/nodes?k=v"),
    ],
)
def test_other_requests_are_sent_to_paths_beside_the_lookup(address: str, sent: str) -> None:
    assert target(Calls(address).nodes()) == sent


class TestAuthorization:
    @pytest.mark.parametrize(
        ("address", "when", "sent"),
        [
            *[("https://h", "https", True), ("http://h", "https", False), ("h", "https", False)],
            *[("unix:/run/x", "https", False), ("http://h", "always", True), ("https://h", "always", True)],
            *[("https://h", "never", False)],
        ],
    )
    def test_the_secret_is_sent_as_authorize_says(self, address: str, when: str, sent: bool) -> None:
        api = Calls(address, authorization="hunter2", authorize=when)
        for call in (api.lookup("t"), api.nodes()):
            assert call.request.headers.get("Authorization") == ("Bearer hunter2" if sent else None)
            assert "Accept" in call.request.headers

    def test_no_repr_shows_the_secret(self) -> None:
        api = Calls("http://h?k=hunter2", authorization="hunter3", authorize="always")
        assert "hunter" not in repr(api) + repr(api.nodes()) + str(api.nodes().request.url)

    def test_a_line_break_is_refused_without_showing_it(self) -> None:
        call = Calls("h", authorization="hunter2\r\nX: y", authorize="always").nodes()
        with pytest.raises(UsageError) as caught:
            call.request.encode()
        assert "hunter2" not in str(caught.value)


class TestLookup:
    CALL = calls.lookup("t")

    def test_replies_of_older_and_newer_releases_are_read(self) -> None:
        node = {"broadcast_address": "h", "tcp_port": 1, "address": "h", "newer": {}}
        found = answer(self.CALL, {"channels": [], "producers": [node], "newer": 1})
        assert found.producers == (NsqdNode(broadcast_address="h", tcp_port=1),)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ({"channels": [3], "producers": []}, r"channels\[0\] is int, not str"),
            (
                {"channels": [], "producers": [{"tcp_port": 1}]},
                r"producers\[0\]\.broadcast_address is missing",
            ),
        ],
    )
    def test_a_wrong_shape_is_named(self, value: object, text: str) -> None:
        with pytest.raises(ApiError, match=rf"http://lookupd\.example:4161/lookup .*{text}$"):
            answer(self.CALL, value)

    def test_a_wrong_name_is_not_asked_for(self) -> None:
        with pytest.raises(InvalidName):
            calls.lookup("b@d")


class TestNodes:
    CALL = calls.nodes()

    def test_a_node_may_be_without_tombstones(self) -> None:
        node = {"broadcast_address": "h", "tcp_port": 1, "topics": ["a"]}
        expected = RegisteredNode(broadcast_address="h", tcp_port=1, topics=("a",))
        assert answer(self.CALL, {"producers": [node]}) == [expected]

    def test_tombstones_must_be_as_many_as_topics(self) -> None:
        node = NODE | {"topics": ["a", "b"], "tombstones": [False]}
        with pytest.raises(ApiError, match=r"producers\[0\] has 2 topics but 1 tombstones"):
            answer(self.CALL, {"producers": [node]})


class TestBadRegistrations:
    """Any client of nsqlookupd can register anything, and one must not disable all others."""

    @pytest.fixture(autouse=True)
    def warn_anew(self) -> None:
        nsqlookupd._warn.cache_clear()

    @staticmethod
    def listed(*nodes: dict[str, object]) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        found = (
            answer(calls.lookup("t"), {"channels": [], "producers": nodes}).producers,
            answer(calls.nodes(), {"producers": nodes}),
        )
        in_lookup, in_nodes = [[(node.tcp_address, node.http_port) for node in each] for each in found]
        return in_lookup, in_nodes

    @pytest.mark.parametrize(
        "bad",
        [
            {"tcp_port": 0},
            {"tcp_port": -4150},
            {"tcp_port": 65536},
            *({"broadcast_address": host} for host in ("", "a b", "h\n", "u@h", "[::1", "unix:/x", "/x")),
            *({"broadcast_address": host} for host in ("h?x", "h:1", "h℀", "fe80::1%u@h")),
        ],
        ids=str,
    )
    def test_a_node_that_cannot_be_dialed_is_left_out_with_one_warning(
        self, bad: dict[str, object], caplog: pytest.LogCaptureFixture
    ) -> None:
        good = [("10.0.0.7:4150", 4151)]
        assert self.listed(NODE | bad, NODE) == (good, good)
        assert self.listed(NODE | bad) == ([], [])
        (warning,) = caplog.messages
        assert "left out" in warning
        assert repr(next(iter(bad.values()))) in warning

    @pytest.mark.parametrize("port", [-1, 65536, 99999])
    def test_a_node_with_an_invalid_http_port_has_none(
        self, port: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        expected = [("10.0.0.7:4150", 0)]
        assert self.listed(NODE | {"http_port": port}) == (expected, expected)
        (warning,) = caplog.messages
        assert f"HTTP port {port}" in warning

    @pytest.mark.parametrize("host", ["::1", "fe80::1%eth0", "nsqd_1.example.", "bücher.example"])
    def test_valid_registrations_are_unchanged(self, host: str, caplog: pytest.LogCaptureFixture) -> None:
        found, _ = self.listed(NODE | {"broadcast_address": host})
        assert found == [(f"[{host}]:4150" if ":" in host else f"{host}:4150", 4151)]
        assert caplog.messages == []


def test_debug_returns_registrations_by_key() -> None:
    entry = {"id": "x", "broadcast_address": "h", "tcp_port": 1, "last_update": 5, "tombstoned": False}
    assert answer(calls.debug(), {"topic:t:": [entry]}) == {"topic:t:": [entry]}
    with pytest.raises(ApiError, match=r"topic:t:\[0\]\.broadcast_address is missing"):
        answer(calls.debug(), {"topic:t:": [{}]})


@pytest.mark.parametrize(
    ("address", "told", "options", "sent"),
    [
        ("h", False, {}, ""),
        ("h", False, {"auth_secret": "auth"}, ""),
        ("https://h", False, {"auth_secret": "auth"}, "auth"),
        ("h", False, {"http_secret": "http"}, "http"),
        ("https://h", False, {"http_secret": "http", "auth_secret": "auth"}, "http"),
        ("h", False, {"http_secret": "http", "lookupd_authorization": "never"}, ""),
        ("h", True, {"http_secret": "http"}, ""),
        ("https://h", True, {"http_secret": "http", "auth_secret": "auth"}, ""),
        ("127.0.0.1", True, {"http_secret": "http"}, "http"),
        ("https://h", True, {"http_secret": "http", "tls": True, "tls_ca_file": CA}, "http"),
        ("https://h", True, {"http_secret": "http", "tls": True}, ""),
    ],
)
def test_the_http_secret_replaces_the_auth_secret(
    address: str, told: bool, options: dict[str, Any], sent: str
) -> None:
    call: Any = Calls.of(address, Config(**options), told=told).nodes()
    found = re.findall(rb"Authorization: (.*)\r\n", call.request.encode())
    assert found == ([f"Bearer {sent}".encode()] if sent else [])
