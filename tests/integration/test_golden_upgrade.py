"""TLS, snappy, deflate and their combinations against tcp_upgrade.json: which OK arrives in which layer.

Compressed bytes differ between implementations; what is compared is what they decode to.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsq.testing import Nsqd, V2Client
from nsq.testing.plugin import factory
from tests.golden import recordings
from tests.golden.conversation import Conversation, as_bytes

CASES = recordings.cases("tcp_upgrade.json")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def nsqd(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    certificate, key = _issue(authority, tmp_path_factory.mktemp("tls"))
    with factory(Nsqd) as make:
        yield make(tls_cert=certificate, tls_key=key)


def _issue(authority: trustme.CA, directory: Path) -> tuple[Path, Path]:
    leaf = authority.issue_cert("127.0.0.1")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    leaf.private_key_pem.write_to_path(str(key))
    certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    return certificate, key


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_nsqd_negotiates_layers_as_gos_did(case: dict[str, Any], nsqd: Nsqd, authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    magic, identify, granted, *rest = case["steps"]
    with V2Client(nsqd.tcp_address, magic=as_bytes(magic["send"])) as client:
        conversation = Conversation(client)
        conversation.follow(2, identify)
        conversation.follow(3, granted)
        features = granted["recv"]["json"]
        if features["tls_v1"]:
            assert rest.pop(0)["recv"]["data"] == "OK"
            client.start_tls(context, "127.0.0.1")
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
