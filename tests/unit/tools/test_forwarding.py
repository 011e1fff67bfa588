"""JSON that nsq_to_nsq forwards, and addresses, headers and redirects of nsq_to_http."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from nsq import Requeue
from nsq.errors import ApiError, ConfigError, UsageError
from nsq.http.message import HttpReply, HttpRequest, parse_url
from nsq.tools import nsq_to_http, nsq_to_nsq
from nsq.tools.nsq_to_http import Destination, headers_of, redirected
from nsq.tools.nsq_to_nsq import filter_of, go_json, parse_object


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ('{"b": 1, "a": [true, null, "x"]}', '{"a":[true,null,"x"],"b":1}'),
        ('{"a": "<b>&\u00e4\u2028"}', '{"a":"\\u003cb\\u003e\\u0026\u00e4\\u2028"}'),
        ('{"a": [1.0, 1.50, -0.0, 100000000000000000000, 1e21, 1e-7, 0.000001, 12345678901234567890]}',
         '{"a":[1,1.5,-0,100000000000000000000,1e+21,1e-7,0.000001,12345678901234567000]}'),
        ('{"a": "\\ud800"}', '{"a":"\ufffd"}'),
        ('{"a": 1, "a": 2}', '{"a":2}'),
    ],
)  # fmt: skip
def test_json_is_written_as_go_writes_it(body: str, written: str) -> None:
    assert go_json(parse_object(body.encode())) == written


FIELD = {"require_json_field": "a"}
VALUE = {**FIELD, "require_json_value": "1"}
KEPT = {"whitelist_json_field": ("a", "c")}


@pytest.mark.parametrize(
    ("given", "body", "forwarded"),
    [
        (FIELD, b'{"a": null, "b": 2}', b'{"a": null, "b": 2}'),
        (FIELD, b'{"b": 2}', None),
        (FIELD, b"[1]", None),
        (FIELD, b"not JSON", None),
        (FIELD, b'{"a": 1e999}', None),
        (FIELD, b'{"a": NaN}', None),
        (VALUE, b'{"a": 1.0}', b'{"a": 1.0}'),
        (VALUE, b'{"a": "1"}', b'{"a": "1"}'),
        (VALUE, b'{"a": "1.0"}', None),
        (VALUE, b'{"a": true}', None),
        (VALUE, b'{"b": 1}', "requeued"),
        ({**FIELD, "require_json_value": "x"}, b'{"a": 0}', None),
        (KEPT, b'{"c": 1, "b": 2, "a": "\xff"}', '{"a":"\ufffd","c":1}'.encode()),
        (KEPT, b'{"b": 2}', b"{}"),
        # Go makes whole numbers integers, but only those of the object itself.
        (KEPT, b'{"a": -0.0, "c": [-0.0]}', b'{"a":0,"c":[-0]}'),
        (
            KEPT,
            b'{"a": -9223372036854775808, "c": 9223372036854775807}',
            b'{"a":-9223372036854775808,"c":9223372036854776000}',
        ),
        (
            KEPT,
            b'{"a": 1234567890123456789, "c": {"d": 1234567890123456789}}',
            b'{"a":1234567890123456768,"c":{"d":1234567890123456800}}',
        ),
        # Nested deeper than we write: it must not come again, with the rest of its batch, for ever.
        (KEPT, b'{"a": ' * 800 + b"1" + b"}" * 800, None),
        (KEPT, b"1", None),
    ],
)
def test_only_the_chosen_json_fields_are_forwarded(
    given: dict[str, Any], body: bytes, forwarded: bytes | str | None
) -> None:
    options = nsq_to_nsq.NsqToNsqOptions(
        topic=("t",), nsqd_tcp_address=("a:1",), destination_nsqd_tcp_address=("b:1",), **given
    )
    filtered = filter_of(options)
    assert filtered is not None
    if forwarded == "requeued":
        with pytest.raises(Requeue):
            filtered(body)
    else:
        assert filtered(body) == forwarded


def test_older_options_set_the_newer_ones() -> None:
    options = nsq_to_http.ToHttpOptions(
        topic="t",
        nsqd_tcp_address=("a:1",),
        post=("http://a/",),
        round_robin=True,
        throttle_fraction=0.5,
        http_timeout_ms=1500,
        max_backoff_duration=3.0,
    )
    assert (options.mode, options.sample, options.http_client_request_timeout) == ("round-robin", 0.5, 1.5)
    assert options.consumer("p", "t", "c").config.max_backoff_duration == 3.0


@pytest.mark.parametrize(
    ("user", "secret"), [("user:secret", b"user:secret"), ("user", b"user:"), ("us%40er:p%3A", b"us@er:p:")]
)
def test_a_user_in_an_address_is_sent_as_gos_client_sends_it(user: str, secret: bytes) -> None:
    request = Destination(f"http://{user}@a:1/", {}, "POST").request(b"body")
    assert request.headers == {"Authorization": f"Basic {base64.b64encode(secret).decode()}"}


def test_a_body_is_escaped_into_the_address() -> None:
    request = Destination("http://user:secret@a:1/p?q=%s", {"X": "y"}, "GET").request(b"a b&\xff~")
    assert str(request.url) == "http://a:1/p"
    assert request.url.target == "/p?q=a+b%26%FF~"
    assert request.headers == {"Authorization": "Basic dXNlcjpzZWNyZXQ=", "X": "y"}
    request = Destination("http://a:1/%%41?q=%s&r=100%%", {}, "GET").request(b"%%s")
    assert request.url.target == "/%41?q=%25%25s&r=100%"


@pytest.mark.parametrize("address", ["http://[", "ftp://a/", "http://a:x/"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError):
        Destination(address, {}, "POST")
    with pytest.raises(ApiError, match="redirects to an invalid address"):
        redirected(HttpRequest(parse_url("http://a:1/")), HttpReply(302, {"location": address}, b""))


def test_headers_are_parsed_from_flags() -> None:
    assert headers_of(["A: b", "C:d: e"]) == {"A": "b", "C": "d: e"}
    assert headers_of(["content-TYPE: a", "x-2fa: b", "X-2FA: c"]) == {"Content-Type": "a", "X-2fa": "c"}
    for wrong in ("A=b", ": b", "A: b\r\nC: d", "X A: b", "X-A:", "X-A: "):
        with pytest.raises(ConfigError, match="Key: Value"):
            headers_of([wrong])
    with pytest.raises(ConfigError, match="sends this header itself"):
        headers_of(["content-length: 99"])


@pytest.mark.parametrize(
    ("status", "location", "method", "url", "headers"),
    [
        (302, "/other?x=1#y", "GET", "https://a:1/other", {"Authorization": "s"}),
        (307, "b", "POST", "https://a:1/p/b", {"Authorization": "s", "Content-Type": "t"}),
        (308, "https://x.a/", "POST", "https://x.a/", {"Authorization": "s", "Content-Type": "t"}),
        (307, "//b/", "POST", "https://b/", {"Content-Type": "t"}),
        (307, "http://a:1/", "POST", "http://a:1/", {"Content-Type": "t"}),
    ],
)
def test_a_redirect_is_followed_with_method_and_safe_headers(
    status: int, location: str, method: str, url: str, headers: dict[str, str]
) -> None:
    request = HttpRequest(
        parse_url("https://a:1/p/q"), "POST", {"Authorization": "s", "Content-Type": "t"}, b"body"
    )
    followed = redirected(request, HttpReply(status, {"location": location}, b""))
    assert (followed.method, str(followed.url), followed.headers) == (method, url, headers)
    assert followed.body == (b"body" if method == "POST" else b"")
