from __future__ import annotations

from typing import Any

import pytest

from nsq.errors import ConfigError
from nsq.transport import addresses


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:4150", "127.0.0.1", 4150),
        ("nsqd.example:1", "nsqd.example", 1),
        ("[::1]:4150", "::1", 4150),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535),
    ],
)
def test_split_and_join_are_inverse(address: str, host: str, port: int) -> None:
    assert addresses.split(address) == (host, port)
    assert addresses.join(host, port) == address


@pytest.mark.parametrize(
    "address",
    [
        *["", "http://nsqd:4151", "nsqd", "4150", ":4150", "nsqd:", "nsqd:0", "nsqd:65536", "nsqd:+80"],
        *["nsqd:4_150"],
        "nsqd:\u0664\u0661",  # digits, but not ASCII
        *["nsqd:99999999999999999999", " nsqd:4150", "nsqd:4150\n", "ns\0qd:4150", "::1:4150", "[::1]"],
        *["[nsqd]:4150", "[::1:4150", "http://nsqd:4150"],
    ],
)
def test_an_invalid_address_is_named(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        addresses.split(address)
    assert repr(address) in str(caught.value)


def test_the_error_of_an_ipv6_address_without_brackets_or_of_several_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"in brackets: \[::1\]:4150"):
        addresses.split("::1:4150")
    with pytest.raises(ConfigError, match=r"several .*\['nsqd-1:4150', 'nsqd-2:4150'\]"):
        addresses.split("nsqd-1:4150, nsqd-2:4150")


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        *[("10.0.0.7", "10.0.0.7", 0), ("10.0.0.7:0", "10.0.0.7", 0), ("10.0.0.7:5000", "10.0.0.7", 5000)],
        *[("fd00::7", "fd00::7", 0), ("[fd00::7]", "fd00::7", 0), ("[fd00::7]:5000", "fd00::7", 5000)],
    ],
)
def test_a_local_address_needs_no_port(address: str, host: str, port: int) -> None:
    assert addresses.split_local(address) == (host, port)


@pytest.mark.parametrize(
    "address", ["", ":5000", "10.0.0.7:", "10.0.0.7:x", "10.0.0.7:70000", "[fd00::7]5", "[]:1"]
)
def test_an_invalid_local_address_is_named(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        addresses.split_local(address)
    assert repr(address) in str(caught.value)


@pytest.mark.parametrize("address", ["unix:/run/nsqd.sock", "/run/nsqd.sock"])
def test_a_unix_address_is_a_path_with_or_without_its_prefix(address: str) -> None:
    assert addresses.is_unix(address)
    assert addresses.unix_path(address) == "/run/nsqd.sock"


def test_host_and_port_are_no_unix_address() -> None:
    assert not addresses.is_unix("unix.example:4150")


@pytest.mark.parametrize("address", ["unix:", "unix:/a\0b"])
def test_a_unix_address_without_a_usable_path_is_named(address: str) -> None:
    with pytest.raises(ConfigError, match="no Unix socket"):
        addresses.unix_path(address)


def test_an_argument_is_one_address_or_several() -> None:
    assert addresses.checked("nsqd", "a:1") == ("a:1",)
    assert addresses.checked("nsqd", iter(["a:1", "b:1", "a:1"])) == ("a:1", "b:1")
    assert addresses.checked("nsqd", ()) == ()


@pytest.mark.parametrize("given", [None, 4150])
def test_an_argument_of_another_kind_is_named(given: Any) -> None:
    with pytest.raises(ConfigError, match=f"nsqd is {given}, must be an address, or several of them"):
        addresses.checked("nsqd", given)


@pytest.mark.parametrize("given", [[4150], [""], [None], {b"a:1": 1}, [["nsqd:4150"]]])
def test_an_argument_with_something_else_among_its_addresses_is_named(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"nsqd has .*, must be an address as text") as caught:
        addresses.checked("nsqd", given)
    assert repr(next(iter(given))) in str(caught.value)


def test_an_nsqd_is_host_and_port_or_a_unix_socket() -> None:
    several = ("a:1", "unix:/run/nsqd.sock", "/run/nsqd.sock")
    assert addresses.checked_nsqds(several) == several
    for wrong in ("a", "unix:", ["a:1", "http://a:1"]):
        with pytest.raises(ConfigError):
            addresses.checked_nsqds(wrong)
