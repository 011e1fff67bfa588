from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsq.config import Config
from nsq.errors import ConfigError, LayerError
from nsq.transport.tls import context_of, public_authorities
from nsq.wire.layers import Tls

HOST = "nsqd.example"


class Files:
    """A CA, a client's certificate and key, and a server that has one of the same CA, as files."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        client = self._authority.issue_cert("client.example")
        self.ca = self._write(folder / "ca.pem", self._authority.cert_pem.bytes())
        self.cert = self._write(folder / "cert.pem", client.cert_chain_pems[0].bytes())
        self.key = self._write(folder / "key.pem", client.private_key_pem.bytes())
        self.both = self._write(folder / "both.pem", client.private_key_and_cert_chain_pem.bytes())
        other = self._authority.issue_cert("other.example")
        self.other_key = self._write(folder / "other.pem", other.private_key_pem.bytes())
        self.rubbish = self._write(folder / "rubbish.pem", b"top secret rubbish")

    def _write(self, path: Path, data: bytes) -> str:
        path.write_bytes(data)
        return str(path)

    def server(self, host: str = HOST, *, demands_certificate: bool = False) -> Tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(host).configure_cert(context)
        if demands_certificate:
            self._authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return Tls(context, server_side=True, server_hostname=None)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


def shake(context: ssl.SSLContext, server: Tls) -> Tls:
    client = Tls(context, server_side=False, server_hostname=HOST)
    while client.has_pending or server.has_pending:
        server.unwrap(client.pending())
        client.unwrap(server.pending())
    assert client.handshake_done
    return client


def context(**options: Any) -> ssl.SSLContext:
    made = context_of(Config(tls=True, **options))
    assert made is not None
    return made


def test_a_server_of_another_name_is_not(files: Files) -> None:
    with pytest.raises(LayerError, match="Hostname mismatch"):
        shake(context(tls_ca_file=files.ca), files.server("elsewhere.example"))


def test_public_authorities_are_trusted_by_default(files: Files) -> None:
    for made in (context(), public_authorities()):
        assert len(made.get_ca_certs()) > 50
        with pytest.raises(LayerError, match="certificate verify failed"):
            shake(made, files.server())


def test_tls_verify_false_accepts_any_certificate(files: Files) -> None:
    shake(context(tls_verify=False), files.server("elsewhere.example"))


@pytest.mark.parametrize("in_one_file", [False, True])
def test_the_client_introduces_itself(files: Files, in_one_file: bool) -> None:
    names = (files.both, None) if in_one_file else (files.cert, files.key)
    server = files.server(demands_certificate=True)
    shake(context(tls_ca_file=files.ca, tls_cert_file=names[0], tls_key_file=names[1]), server)
    assert server.peer_certificate is not None


@pytest.mark.parametrize("option", ["ca_file", "cert_file"])
def test_a_missing_file_is_named_with_its_option(option: str) -> None:
    with pytest.raises(
        ConfigError, match=f"tls_{option} '/nowhere/x.pem' cannot be read: No such file"
    ) as caught:
        context(**{f"tls_{option}": "/nowhere/x.pem"})
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_missing_key_is_named(files: Files) -> None:
    with pytest.raises(ConfigError, match=r"tls_key_file '/nowhere/x\.pem' cannot be read"):
        context(tls_cert_file=files.cert, tls_key_file="/nowhere/x.pem")


@pytest.mark.parametrize("option", ["ca_file", "cert_file"])
def test_a_file_with_something_else_is_named_and_not_quoted(files: Files, option: str) -> None:
    with pytest.raises(ConfigError, match=f"tls_{option} '{files.rubbish}'") as caught:
        context(**{f"tls_{option}": files.rubbish})
    assert "secret" not in str(caught.value)
    assert "_ssl.c" not in str(caught.value)


def test_a_key_of_another_certificate_is_refused(files: Files) -> None:
    with pytest.raises(ConfigError, match=r"cert_file .* tls_key_file .*(?i:mismatch)"):
        context(tls_cert_file=files.cert, tls_key_file=files.other_key)


def test_an_encrypted_key_is_refused_without_asking_on_the_terminal(files: Files, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as pem

    key = pem.load_pem_private_key(Path(files.key).read_bytes(), None)
    locked = key.private_bytes(
        pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"password")
    )
    path = tmp_path / "locked.pem"
    path.write_bytes(locked)
    with pytest.raises(ConfigError, match="needs a password"):
        context(tls_cert_file=files.cert, tls_key_file=str(path))


def test_the_options_of_a_client_decide(files: Files) -> None:
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert context_of(Config()) is None
    assert context_of(Config(tls=own)) is own
    made = context_of(
        Config(
            tls=True,
            tls_ca_file=files.ca,
            tls_cert_file=files.cert,
            tls_key_file=files.key,
            tls_min_version="TLSv1.3",
        )
    )
    assert made is not None
    assert (made.verify_mode, made.minimum_version) == (ssl.CERT_REQUIRED, ssl.TLSVersion.TLSv1_3)
    assert made.cert_store_stats()["x509_ca"] == 1
    shake(made, files.server(demands_certificate=True))
    careless = context_of(Config(tls=True, tls_verify=False))
    assert careless is not None
    assert (careless.verify_mode, careless.check_hostname) == (ssl.CERT_NONE, False)
