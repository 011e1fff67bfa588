"""TLS, snappy, deflate and their combinations against tcp_upgrade.json: which OK arrives in which layer.

Compressed bytes differ between implementations; what is compared is what they decode to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import factory
from tests.golden import recordings
from tests.golden.conversation import Conversation, as_bytes
from tests.integration.authority import Authority

CASES = recordings.cases("tcp_upgrade.json")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def nsqd(authority: Authority) -> Iterator[Nsqd]:
    with factory(Nsqd) as make:
        yield make(**authority.server_options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_nsqd_negotiates_layers_as_gos_did(case: dict[str, Any], nsqd: Nsqd, authority: Authority) -> None:
    magic, identify, granted, *rest = case["steps"]
    with V2Client(nsqd.tcp_address, magic=as_bytes(magic["send"])) as client:
        conversation = Conversation(client)
        conversation.follow(2, identify)
        conversation.follow(3, granted)
        features = granted["recv"]["json"]
        if features["tls_v1"]:
            assert rest.pop(0)["recv"]["data"] == "OK"
            client.start_tls(authority.client_context(), "127.0.0.1")
        for number, step in enumerate(rest, start=4):
            if "recv_raw_hex" in step:
                _start_compression(client, features)
            conversation.follow(number, step)
        client.expect_silence(0.05)


def _start_compression(client: V2Client, features: dict[str, Any]) -> None:
    if features["snappy"]:
        client.start_snappy()
    else:
        client.start_deflate(features["deflate_level"])
