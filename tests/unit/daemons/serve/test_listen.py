from __future__ import annotations

import pytest

from nsq.daemons.serve.listen import Address, TcpAddress, UnixAddress, parse_address
from nsq.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":4150", TcpAddress("", 4150)),
        ("0.0.0.0:4150", TcpAddress("0.0.0.0", 4150)),
        ("[::]:4150", TcpAddress("::", 4150)),
        ("[fe80::1%eth0]:0", TcpAddress("fe80::1%eth0", 0)),
        ("nsq.example:65535", TcpAddress("nsq.example", 65535)),
        ("/tmp/nsqd.sock", UnixAddress("/tmp/nsqd.sock")),
        ("./nsqd.sock", UnixAddress("./nsqd.sock")),
    ],
)
def test_addresses_read_and_show_as_go_spells_them(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["localhost", "[::1]", ""])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="has no port"):
        parse_address(text)
    assert parse_address(text, default_port=4150) == TcpAddress(text.strip("[]"), 4150)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h:", "port '', which is not a number"),
        ("h:http", "port 'http'"),
        ("h:65536", "port '65536'"),
        ("h:-1", "port '-1'"),
        ("h:٤", "port '٤'"),
        ("::1:4150", r"several colons; .* \[host\]:port"),
        ("[::1", "unfinished"),
        ("[::1]4150", "unfinished"),
    ],
)
def test_an_invalid_address_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_address(text)
