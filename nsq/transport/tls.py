"""Makes a client's TLS context from its options, unless these hold a ready ``ssl.SSLContext``.

``nsq.wire.layers.Tls`` does the handshake over a LayeredStream. Must not import certifi before it is needed.
"""

from __future__ import annotations

import ssl
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from nsq.errors import ConfigError
from nsq.wire.layers.tls import reason

if TYPE_CHECKING:
    from nsq.config import Config

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def context_of(config: Config) -> ssl.SSLContext | None:
    """Return the context for a client's options, made anew at each call; None without TLS.

    If a file cannot be used, raises ConfigError with its option and path.
    """
    if not isinstance(config.tls, bool):
        return config.tls
    return _made_for(config) if config.tls else None


@cache
def public_authorities() -> ssl.SSLContext:
    """Return the context for servers whose certificates certifi's authorities have signed."""
    from nsq.config import Config

    return _made_for(Config(tls=True))


def _made_for(config: Config) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[config.tls_min_version]
    if config.tls_ca_file is not None or config.tls_verify:
        _load_authorities(context, config.tls_ca_file)
    if config.tls_cert_file is not None:
        _load_certificate(context, config.tls_cert_file, config.tls_key_file)
    if not config.tls_verify:
        context.check_hostname = False  # first: a context that checks names refuses CERT_NONE
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_authorities(context: ssl.SSLContext, ca_file: str | None) -> None:
    if ca_file is None:
        import certifi

        ca_file = certifi.where()
    _check_readable("ca_file", ca_file)
    try:
        context.load_verify_locations(ca_file)
    except OSError as error:  # SSLError is one
        raise ConfigError(f"tls_ca_file {ca_file!r} holds no usable certificates: {reason(error)}") from error


def _load_certificate(context: ssl.SSLContext, cert_file: str, key_file: str | None) -> None:
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
        raise ConfigError(f"{named}: no usable certificate with its key: {reason(error)}") from error


def _check_readable(option: str, path: str) -> None:
    """Check that a file can be read: OpenSSL would not name the file that it could not read."""
    try:
        with open(path, "rb"):
            return
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls_{option} {path!r} cannot be read: {reason(error)}") from error
