from __future__ import annotations

import datetime
import io
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.tls import client_context, server_context
from nsq.daemons.serve.logs import DaemonLog
from nsq.errors import ConfigError


def context_of(**options: str) -> tuple[ssl.SSLContext | None, str]:
    """A context, and the lines that were logged."""
    log = io.StringIO()
    return server_context(NsqdOptions(**options), DaemonLog("", "info", log)), log.getvalue()  # type: ignore[arg-type]


def test_a_missing_file_of_authorities_is_refused_also_without_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tls-root-ca-file"):
        context_of(tls_root_ca_file=str(tmp_path / "none.pem"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A good certificate, its key and its authority."""
    directory = tmp_path_factory.mktemp("good")
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    leaf.private_key_and_cert_chain_pem.write_to_path(str(directory / "server.pem"))
    return {"both": str(directory / "server.pem"), "ca": str(directory / "ca.pem")}


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a key of 1024 bits, as clusters of long ago have them, and its certificate."""
    key = rsa.generate_private_key(65537, 1024)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "old.example")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path = tmp_path_factory.mktemp("weak") / "server.pem"
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(private + certificate.public_bytes(pem))
    return str(path)


def test_there_is_no_tls_without_a_certificate() -> None:
    assert context_of() == (None, "")


def test_a_good_certificate_keeps_the_security_level(files: dict[str, str]) -> None:
    context, said = context_of(tls_cert=files["both"], tls_key=files["both"])
    assert context is not None
    assert context.security_level == ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).security_level
    assert said == ""


def test_a_weak_certificate_is_used_with_a_warning(weak: str) -> None:
    context, said = context_of(tls_cert=weak, tls_key=weak)
    assert context is not None
    assert f"--tls-cert {weak} is weak (EE_KEY_TOO_SMALL)" in said
    usual = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert {c["name"] for c in context.get_ciphers()} == {c["name"] for c in usual.get_ciphers()}
    assert handshake(context) == "old.example"


def handshake(server_side: ssl.SSLContext) -> str:
    """The name in the certificate that a client meets which, like many of Go's, does not care whose it is."""
    careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
    careless.set_ciphers("DEFAULT:@SECLEVEL=0")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [careless.wrap_bio(down, up), server_side.wrap_bio(up, down, server_side=True)]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = ends[0].getpeercert(binary_form=True)
    assert shown is not None
    subject = x509.load_der_x509_certificate(shown).subject
    return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def test_an_invalid_certificate_is_refused(files: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"--tls-cert .*ca\.pem"):
        context_of(tls_cert=files["ca"], tls_key=files["ca"])


@pytest.mark.parametrize(
    ("policy", "mode"),
    [("", ssl.CERT_NONE), ("require", ssl.CERT_REQUIRED), ("require-verify", ssl.CERT_REQUIRED)],
)
def test_clients_show_certificates_where_a_policy_asks_for_them(
    files: dict[str, str], policy: str, mode: ssl.VerifyMode
) -> None:
    options = {"tls_cert": files["both"], "tls_key": files["both"], "tls_root_ca_file": files["ca"]}
    context, _ = context_of(**options, tls_client_auth_policy=policy)
    assert context is not None
    assert context.verify_mode == mode
    assert len(context.get_ca_certs()) == 1


def test_an_authority_that_is_none_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    options = {"tls_cert": files["both"], "tls_key": files["both"]}
    with pytest.raises(ConfigError, match="--tls-root-ca-file"):
        context_of(**options, tls_root_ca_file=str(tmp_path / "none.pem"))


def test_the_least_version_holds_on_both_sides(files: dict[str, str]) -> None:
    options = {"tls_cert": files["both"], "tls_key": files["both"], "tls_min_version": "tls1.3"}
    context, _ = context_of(**options)
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert client_context(NsqdOptions(tls_min_version="tls1.3")).minimum_version == ssl.TLSVersion.TLSv1_3
