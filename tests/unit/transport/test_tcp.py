from __future__ import annotations

import pytest

from nsq.errors import ConfigError, DialFailed
from nsq.transport import AddressTransport, MemoryTransport, TcpTransport, Transport, default_transport


@pytest.mark.parametrize(
    ("address", "unix"),
    [
        ("127.0.0.1:4150", False),
        ("[::1]:4150", False),
        ("unix.example:4150", False),
        ("unix:/run/nsqd.sock", True),
        ("/run/nsqd.sock", True),
    ],
)
def test_the_address_decides(address: str, unix: bool) -> None:
    tcp_side, unix_side = MemoryTransport(), MemoryTransport()
    AddressTransport(tcp_side, unix_side).connect(address, timeout=1.0)
    assert (tcp_side.dials, unix_side.dials) == (([], [address]) if unix else ([address], []))


@pytest.mark.parametrize("address", ["nsqd", "nsqd:http", "::1:4150", "unix:", ""])
def test_a_dial_of_what_is_no_address_fails_like_any_other(address: str) -> None:
    with pytest.raises(DialFailed) as caught:
        default_transport.connect(address, timeout=1.0)
    assert str(caught.value).startswith(f"cannot connect to {address}: ")
    assert isinstance(caught.value.__cause__, ConfigError)


@pytest.mark.parametrize("local_address", ["127.0.0.1", "127.0.0.1:0", "::1", "[::1]:0"])
def test_a_local_address_is_an_ip_address(local_address: str) -> None:
    assert TcpTransport(local_address=local_address).local_address == local_address


@pytest.mark.parametrize("local_address", ["", "host.example", "127.0.0.1:x", "127.0.0.300"])
def test_any_other_local_address_is_refused(local_address: str) -> None:
    with pytest.raises(ConfigError, match="local_address is"):
        TcpTransport(local_address=local_address)


def test_there_is_a_default() -> None:
    assert isinstance(default_transport, Transport)
