"""What TLS a client's options ask for."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from nsq.config import Config
from nsq.errors import ConfigError
from nsq.transport.tls import context_of


class TestTlsContext:
    def test_none_without_tls(self) -> None:
        assert context_of(Config()) is None

    def test_the_given_one(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        assert context_of(Config(tls=context)) is context

    def test_verifies_with_public_authorities_by_default(self) -> None:
        context = context_of(Config(tls=True, tls_min_version="TLSv1.3"))
        assert context is not None
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
        assert context.cert_store_stats()["x509_ca"] > 50

    def test_own_authorities_replace_them(self, tmp_path: Path) -> None:
        trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
        context = context_of(Config(tls=True, tls_ca_file=str(tmp_path / "ca.pem")))
        assert context is not None
        assert context.cert_store_stats()["x509_ca"] == 1

    def test_verification_can_be_given_up(self) -> None:
        context = context_of(Config(tls=True, tls_verify=False))
        assert context is not None
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)

    def test_certificate_and_key(self, tmp_path: Path) -> None:
        issued = trustme.CA().issue_cert("client")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
        issued.private_key_pem.write_to_path(tmp_path / "key.pem")
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
        apart = Config(
            tls=True, tls_cert_file=str(tmp_path / "cert.pem"), tls_key_file=str(tmp_path / "key.pem")
        )
        together = Config(tls=True, tls_cert_file=str(tmp_path / "both.pem"))
        assert context_of(apart) is not None
        assert context_of(together) is not None

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing.pem")
        with pytest.raises(ConfigError, match=r"tls_ca_file .*missing\.pem' cannot be read"):
            context_of(Config(tls=True, tls_ca_file=missing))
        with pytest.raises(ConfigError, match=r"tls_cert_file .*missing\.pem"):
            context_of(Config(tls=True, tls_cert_file=missing))

    def test_a_key_that_wants_a_password_is_refused_instead_of_asked_for(self, tmp_path: Path) -> None:
        issued = trustme.CA().issue_cert("client")
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        locked = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hunter2"),
        )
        issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
        (tmp_path / "key.pem").write_bytes(locked)
        config = Config(
            tls=True, tls_cert_file=str(tmp_path / "cert.pem"), tls_key_file=str(tmp_path / "key.pem")
        )
        with pytest.raises(ConfigError, match="password"):
            context_of(config)

    def test_a_file_that_holds_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "ca.pem").write_text("hello")
        with pytest.raises(ConfigError, match="tls_ca_file"):
            context_of(Config(tls=True, tls_ca_file=str(tmp_path / "ca.pem")))
