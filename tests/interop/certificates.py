"""A certificate for a server on 127.0.0.1, in files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme


class Certificate(NamedTuple):
    """A server's certificate, and the authority that its clients trust."""

    chain: Path
    key: Path
    authority: Path


def issue(directory: Path) -> Certificate:
    made = Certificate(directory / "chain.pem", directory / "key.pem", directory / "authority.pem")
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    made.chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(str(made.key))
    authority.cert_pem.write_to_path(str(made.authority))
    return made
