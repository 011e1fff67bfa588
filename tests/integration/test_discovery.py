"""Questions to nsqlookupd: which secrets they carry, how TLS is verified, and how they end."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsq.config import Config
from nsq.discovery.lookups import Asker
from nsq.errors import ApiError
from nsq.testing import Nsqlookupd
from tests.fakes.nsqlookupd import ScriptedLookupd, black_hole

TOPIC = "orders"
SECRET = "s3cret"


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def encrypted(authority: trustme.CA) -> Iterator[ScriptedLookupd]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ScriptedLookupd("n:4150", tls=context) as scripted:
        yield scripted


def ask(scripted: ScriptedLookupd, path: str = "", **options: Any) -> frozenset[str] | None:
    return Asker(TOPIC, Config(auth_secret=SECRET, **options)).ask(scripted.address + path)


@pytest.mark.parametrize(
    ("allowed", "sent"), [("https", None), ("never", None), ("always", f"Bearer {SECRET}")]
)
def test_the_secret_is_sent_unencrypted_only_when_insisted(allowed: str, sent: str | None) -> None:
    with ScriptedLookupd("n:4150", "[::1]:4150") as scripted:
        assert ask(scripted, lookupd_authorization=allowed) == {"n:4150", "[::1]:4150"}
        assert scripted.requests == [("/lookup?topic=orders", sent)]


def test_the_secret_is_sent_over_tls_with_its_settings(
    encrypted: ScriptedLookupd, authority: trustme.CA, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    found = ask(encrypted, "/behind/proxy?token=1", tls=True, tls_ca_file=str(tmp_path / "ca.pem"))
    assert found == {"n:4150"}
    assert encrypted.requests == [("/behind/proxy?token=1&topic=orders", f"Bearer {SECRET}")]


def test_without_settings_of_tls_public_authorities_verify(encrypted: ScriptedLookupd) -> None:
    with pytest.raises(ApiError, match="certificate verify failed") as refused:
        ask(encrypted, "/lookup?token=t0ken")
    assert "t0ken" not in str(refused.value)
    assert encrypted.requests == []


def test_an_unknown_topic_is_an_empty_answer(nsqlookupd: Nsqlookupd) -> None:
    assert Asker("nowhere", Config()).ask(nsqlookupd.http_address) == frozenset()


def test_cancel_ends_questions_under_way_and_to_come() -> None:
    subject = Asker(TOPIC, Config(lookupd_poll_timeout=300.0))
    with black_hole() as hole:
        timer = threading.Timer(0.2, subject.cancel)
        timer.start()
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(ApiError):
                subject.ask(hole)
        assert time.monotonic() - began < 300.0
        timer.join()
