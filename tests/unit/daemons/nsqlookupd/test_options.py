from __future__ import annotations

import socket
from typing import Any

import pytest

from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
from nsq.errors import ConfigError
from nsq.flags import FlagExit, parse


def test_defaults_are_those_of_the_go_daemon() -> None:
    assert parse(NsqlookupdOptions, [], prog="nsqlookupd").options == NsqlookupdOptions(
        tcp_address="0.0.0.0:4160",
        http_address="0.0.0.0:4161",
        broadcast_address=socket.gethostname(),
        inactive_producer_timeout=300.0,
        tombstone_lifetime=45.0,
        log_level="info",
        log_prefix="[nsqlookupd] ",
        verbose=False,
    )


def test_flags_set_options() -> None:
    argv = [
        "-tcp-address=:1",
        "--tombstone-lifetime",
        "1m30s",
        "--inactive-producer-timeout=500ms",
        "-verbose",
    ]
    parsed = parse(NsqlookupdOptions, argv, prog="nsqlookupd")
    assert parsed.options == NsqlookupdOptions(
        tcp_address=":1", tombstone_lifetime=90.0, inactive_producer_timeout=0.5, verbose=True
    )
    assert parsed.warnings == ("--verbose is deprecated: use --log-level=debug",)


def test_a_level_that_is_none_cannot_be_read() -> None:
    with pytest.raises(FlagExit) as caught:
        parse(NsqlookupdOptions, ["--log-level=loud"], prog="nsqlookupd")
    assert caught.value.status == 2


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("tcp_address", "4160", "no port"),
        ("http_address", "h:x", "not a number"),
        ("log_level", "loud", "log level 'loud'"),
        ("tombstone_lifetime", -1.0, "--tombstone-lifetime is -1.0"),
        ("inactive_producer_timeout", float("nan"), "--inactive-producer-timeout is nan"),
    ],
)
def test_impossible_values_are_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NsqlookupdOptions(**{name: value})
