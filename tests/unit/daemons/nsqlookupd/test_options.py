from __future__ import annotations

from typing import Any

import pytest

from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
from nsq.errors import ConfigError


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
def test_nsqlookupd_refuses_impossible_values(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NsqlookupdOptions(**{name: value})
