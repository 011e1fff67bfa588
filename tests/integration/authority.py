"""A certificate authority and its certificates: files for nsqd, contexts for clients."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


class Authority:
    """Signs certificates for the server on 127.0.0.1 and for named clients."""

    def __init__(self, directory: Path) -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self.certificate = directory / "authority.pem"
        self._ca.cert_pem.write_to_path(str(self.certificate))
        self._server = self.issue("server", "127.0.0.1", "::1")

    def issue(self, name: str, *identities: str) -> tuple[Path, Path]:
        """Return the files of a new certificate and its key, NAME.pem and NAME.key."""
        made = self._ca.issue_cert(*identities)
        chain, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(key))
        return chain, key

    @property
    def server_options(self) -> dict[str, Path]:
        """Return the options for an nsqd with a certificate."""
        return {"tls_cert": self._server[0], "tls_key": self._server[1]}

    def client_context(self, *, known_by: Authority | None = None, version: str = "") -> ssl.SSLContext:
        """Return a client context that trusts this authority; ``known_by`` adds a client certificate,
        ``version`` is the only TLS version.
        """
        context = ssl.create_default_context()
        self._ca.configure_trust(context)
        if known_by is not None:
            # A name on both sides: without one the certificate would have an empty list of names marked as
            # critical, which Go refuses.
            name = "client.example"
            known_by._ca.issue_cert(name, common_name=name).configure_cert(context)
        if version:
            context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
        return context
