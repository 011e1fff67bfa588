"""The TLS context of a client, from options. A ready ``ssl.SSLContext`` does as well wherever one is asked
for.

The handshake itself is ``nsq.wire.layers.Tls``, carried by a LayeredStream. Must not import certifi before
it is needed.
"""

from __future__ import annotations

import re
import ssl
from typing import NoReturn

from nsq.config import Config
from nsq.errors import ConfigError

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def context_of(config: Config) -> ssl.SSLContext | None:
    """The context that a client's options ask for, made anew at each call; None without TLS."""
    if not isinstance(config.tls, bool):
        return config.tls
    if not config.tls:
        return None
    return client_context(
        ca_file=config.tls_ca_file,
        cert_file=config.tls_cert_file,
        key_file=config.tls_key_file,
        min_version=config.tls_min_version,
        verify=config.tls_verify,
    )


def client_context(
    *,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    min_version: str = "TLSv1.2",
    verify: bool = True,
) -> ssl.SSLContext:
    """A context that checks the server's certificate and name, against ``ca_file`` or else certifi's roots.

    ``cert_file`` and ``key_file`` introduce this client; the key may lie in ``cert_file``. ``verify=False``
    accepts whoever answers, and is only for tests. ConfigError names the option and the path.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if min_version not in _VERSIONS:
        known = " or ".join(_VERSIONS)
        raise ConfigError(
            f"tls_min_version is {min_version!r}, must be {known}; for others pass an SSLContext"
        )
    context.minimum_version = _VERSIONS[min_version]
    if ca_file is not None or verify:
        _trust(context, ca_file)
    _introduce(context, cert_file, key_file)
    if not verify:
        context.check_hostname = False  # first: a context that checks names refuses CERT_NONE
        context.verify_mode = ssl.CERT_NONE
    return context


def _trust(context: ssl.SSLContext, ca_file: str | None) -> None:
    if ca_file is None:
        import certifi

        ca_file = certifi.where()
    _check_readable("ca_file", ca_file)
    try:
        context.load_verify_locations(ca_file)
    except OSError as error:  # SSLError is one
        raise ConfigError(
            f"tls_ca_file {ca_file!r} holds no usable certificates: {_reason(error)}"
        ) from error


def _introduce(context: ssl.SSLContext, cert_file: str | None, key_file: str | None) -> None:
    if cert_file is None:
        if key_file is not None:
            raise ConfigError(f"tls_key_file is {key_file!r}, but there is no tls_cert_file")
        return
    _check_readable("cert_file", cert_file)
    named = f"tls_cert_file {cert_file!r}"
    if key_file is not None:
        _check_readable("key_file", key_file)
        named += f", tls_key_file {key_file!r}"

    def no_password() -> NoReturn:
        # Without this OpenSSL would ask on the terminal and wait.
        raise ConfigError(f"{named}: the key needs a password; load it into an SSLContext and pass that")

    try:
        context.load_cert_chain(cert_file, key_file, no_password)
    except OSError as error:
        raise ConfigError(f"{named}: no usable certificate with its key: {_reason(error)}") from error


def _check_readable(option: str, path: str) -> None:
    """Apart, because OpenSSL does not say which file it could not read."""
    try:
        with open(path, "rb"):
            return
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls_{option} {path!r} cannot be read: {_reason(error)}") from error


def _reason(error: OSError | ValueError) -> str:
    """OpenSSL's words without the place in CPython's source; they hold nothing of a file's contents."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return re.sub(r" \(_ssl\.c:\d+\)$", "", text)
