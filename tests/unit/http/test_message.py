from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import ApiError, UsageError
from nsq.http.message import MAX_HEAD, HttpReply, HttpRequest, ReplyParser, Url, parse_url

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Thing:  a b \r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED += b"3\r\nabc\r\n0A;name=value\r\n0123456789\r\n0\r\n\r\n"
TENTH = b"64\r\n" + b"x" * 100 + b"\r\n"  # of what may come at most
UNTIL_CLOSE = b"HTTP/1.0 404 Not Found\r\n\r\nnothing here"


def parse(wire: bytes, cuts: list[int] | None = None, max_body: int = 1000) -> HttpReply:
    parser = ReplyParser(max_body=max_body)
    places = sorted({0, len(wire), *(place % (len(wire) + 1) for place in cuts or [])})
    for start, end in pairwise(places):
        parser.feed(wire[start:end])
    if parser.reply is None:
        parser.end()
    assert parser.reply is not None
    return parser.reply


# Addresses


@pytest.mark.parametrize(
    ("text", "url", "authority"),
    [
        ("http://h:4161/lookup?topic=t", Url("http", "h", 4161, "/lookup?topic=t"), "h:4161"),
        ("h:4161/lookup", Url("http", "h", 4161, "/lookup"), "h:4161"),
        ("h", Url("http", "h", 80, "/"), "h"),
        ("https://h", Url("https", "h", 443, "/"), "h"),
        ("https://h:80?x=1", Url("https", "h", 80, "/?x=1"), "h:80"),
        ("[::1]:4151/ping", Url("http", "::1", 4151, "/ping"), "[::1]:4151"),
        ("http://[::1]/", Url("http", "::1", 80, "/"), "[::1]"),
        ("unix:/run/nsqd.sock", Url("http", "localhost", 80, "/", "/run/nsqd.sock"), "localhost"),
        ("/run/nsqd.sock", Url("http", "localhost", 80, "/", "/run/nsqd.sock"), "localhost"),
    ],
)
def test_an_address_becomes_a_url(text: str, url: Url, authority: str) -> None:
    assert parse_url(text) == url
    assert parse_url(text).authority == authority


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ftp://h/", "scheme 'ftp'"),
        ("", "names no host"),
        ("4161", "'4161' is a port without a host: give HOST:PORT, such as 127.0.0.1:4161"),
        ("4161/nodes", "is a port without a host"),
        ("http:///x", "names no host"),
        ("h:99999", "is not a URL"),
        ("h:port", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("h/a b", "a space or control character"),
        ("h/\x7f", "a space or control character"),
        ("http://h:port/?k=hunter2", "is not a URL"),
        ("ftp://h/?k=hunter2", "scheme 'ftp'"),
        ("http://user:hunter2@h/", "address "),
        ("http://h/a b?k=hunter2", "a space or control character"),
        ("unix:", "address "),
        ("unix:/a\0b", "address "),
    ],
)
def test_an_invalid_address_is_refused_without_showing_secrets(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_url(text)
    assert "hunter2" not in str(caught.value)


def test_the_default_port_is_only_for_an_address_without_scheme() -> None:
    texts = ("h", "h:1", "http://h", "https://h", "[::1]", "h/path")
    assert [parse_url(text, 4161).port for text in texts] == [4161, 1, 80, 443, 4161, 4161]


def test_a_shown_url_never_shows_its_query() -> None:
    assert str(parse_url("h:1/auth?secret=x")) == "http://h:1/auth"


# Requests


def test_a_get_is_encoded() -> None:
    assert HttpRequest(parse_url("h:4151/ping?a=1")).encode() == (
        b"GET /ping?a=1 HTTP/1.1\r\nHost: h:4151\r\nConnection: close\r\nAccept-Encoding: identity\r\n\r\n"
    )


def test_a_post_tells_its_length_even_without_a_body() -> None:
    assert b"\r\nContent-Length: 0\r\n\r\n" in HttpRequest(parse_url("h"), "POST").encode()
    request = HttpRequest(parse_url("h"), "POST", {"Content-Type": "x/y"}, b"\0body")
    assert request.encode().endswith(b"\r\nContent-Length: 5\r\nContent-Type: x/y\r\n\r\n\0body")


def test_given_headers_replace_default_ones() -> None:
    encoded = HttpRequest(parse_url("h"), headers={"Host": "other"}).encode()
    assert encoded.count(b"Host:") == 1
    assert b"Host: other\r\n" in encoded


@pytest.mark.parametrize("value", ["a\r\nB: c", "a\n", "\r"])
def test_a_header_cannot_smuggle_another(value: str) -> None:
    with pytest.raises(UsageError, match="X-A contains a line break"):
        HttpRequest(parse_url("h"), headers={"X-A": value}).encode()


# Replies


@given(st.lists(st.integers(0, 200), max_size=20), st.sampled_from([PLAIN, CHUNKED, UNTIL_CLOSE]))
def test_a_reply_is_read_however_it_is_cut(cuts: list[int], wire: bytes) -> None:
    expected = {
        PLAIN: HttpReply(200, {"content-length": "5", "x-thing": "a b"}, b"hello"),
        CHUNKED: HttpReply(200, {"transfer-encoding": "chunked"}, b"abc0123456789"),
        UNTIL_CLOSE: HttpReply(404, {}, b"nothing here"),
    }
    assert parse(wire, cuts) == expected[wire]


def test_a_reply_is_there_as_soon_as_it_is_whole() -> None:
    for wire in (PLAIN, CHUNKED, b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\n\r\n"):
        parser = ReplyParser()
        parser.feed(wire + b"what a broken server sends behind it")
        assert parser.reply is not None
        parser.feed(b"and still more")
        parser.end()


def test_announcements_before_the_reply_are_skipped() -> None:
    before = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n"
    assert parse(before + PLAIN) == parse(PLAIN)
    assert parse(before * 5_000 + PLAIN) == parse(PLAIN)


@pytest.mark.parametrize("wire", [PLAIN, CHUNKED])
def test_a_reply_that_breaks_off_is_an_error(wire: bytes) -> None:
    for length in range(len(wire) - 2 if wire is CHUNKED else len(wire)):
        parser = ReplyParser()
        parser.feed(wire[:length])
        if parser.reply is None:
            with pytest.raises(ApiError, match="closed in the middle"):
                parser.end()
        else:
            assert wire is CHUNKED
            assert length >= len(wire) - 4


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        (b"\0\0\0\x0a\0\0\0\0OK\r\n\r\n", "does not answer in HTTP"),
        (b"SSH-2.0-x\r\n\r\n", "does not answer in HTTP"),
        (b"\0\0\0\x12\0\0\0\x01E_BAD_PROTOCOL", "a TCP port of NSQ"),
        (b"\0\0\0\x12", "a TCP port of NSQ"),  # Go's nsqd sends the size alone first
        (b"\0\0\0\x0e", "a TCP port of NSQ"),  # nsqlookupd
        (b"HTTP/1.1 OK\r\n\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "header line 'no colon'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "Content-Length is '-1'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n", "Content-Length is '1_0'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "larger than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001, "larger than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", "larger than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 5000, "endless chunk size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcde", "a chunk of another size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + 11 * TENTH, "larger than 1000 bytes"),
        (b"X" * (MAX_HEAD + 1), "head is larger"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000 + b"\r\n", "head is larger"),
        *(
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + b"\r\nabcdefgh", "chunk size")
            for chunk in (b"-2", b"+3", b"0x3", b"1_0", b"", b"xyz", b";a")
        ),
    ],
)
def test_an_unacceptable_reply_is_an_error(wire: bytes, said: str) -> None:
    with pytest.raises(ApiError, match=said):
        parse(wire)


@given(
    st.lists(st.binary(max_size=30), max_size=10),
    st.sampled_from([b"", PLAIN[:40], CHUNKED[:50], CHUNKED[:60], UNTIL_CLOSE]),
)
def test_garbage_raises_nothing_but_api_errors(pieces: list[bytes], beginning: bytes) -> None:
    parser = ReplyParser(max_body=100)
    try:
        for piece in [beginning, *pieces]:
            parser.feed(piece)
        parser.end()
    except ApiError:
        assert parser.reply is None
    else:
        assert parser.reply is not None
        assert len(parser.reply.body) <= 100
