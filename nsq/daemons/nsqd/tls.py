"""Makes the TLS contexts of nsqd from its options."""

from __future__ import annotations

import ssl
import warnings

from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.serve.logs import DaemonLog
from nsq.errors import ConfigError

_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}

#: OpenSSL's reasons for refusing a weak certificate, which Go accepts and OpenSSL can be made to accept.
_WEAK = ("EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK")


def server_context(options: NsqdOptions, log: DaemonLog) -> ssl.SSLContext | None:
    """Make the context for TCP and HTTPS clients; None without --tls-cert."""
    if options.tls_root_ca_file:
        client_context(options)  # raises ConfigError if the file cannot be read, also without a certificate
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_minimum(context, options)
    try:
        _load_certificate(context, options, log)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--tls-cert {options.tls_cert!r}, --tls-key {options.tls_key!r}: {error}"
        ) from None
    _demand_client_certificates(context, options)
    return context


def client_context(options: NsqdOptions) -> ssl.SSLContext:
    """Make the context for auth servers: it trusts --tls-root-ca-file, or the system's authorities."""
    try:
        context = ssl.create_default_context(cafile=options.tls_root_ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--tls-root-ca-file {options.tls_root_ca_file!r}: {error}") from None
    _set_minimum(context, options)
    return context


def _set_minimum(context: ssl.SSLContext, options: NsqdOptions) -> None:
    with warnings.catch_warnings():
        # TLS 1.0 and 1.1 are deprecated, but Go's nsqd accepts them by default.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = _VERSIONS[options.tls_min_version]


def _load_certificate(context: ssl.SSLContext, options: NsqdOptions, log: DaemonLog) -> None:
    """Load the certificate, also a weak one, as Go does: a cluster that uses one must be able to move."""
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except ssl.SSLError as error:
        if error.reason not in _WEAK:
            raise
        log.warning("--tls-cert %s is weak (%s): make a new one", options.tls_cert, error.reason)
        ciphers = ":".join(cipher["name"] for cipher in context.get_ciphers())
        context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
        context.load_cert_chain(options.tls_cert, options.tls_key)


def _demand_client_certificates(context: ssl.SSLContext, options: NsqdOptions) -> None:
    """Require client certificates if a policy asks for them. Both policies verify: Python's TLS cannot
    require a certificate without verifying it.

    Without a policy none is requested: a client could send one that is meant for another server.
    """
    if options.tls_root_ca_file:
        context.load_verify_locations(options.tls_root_ca_file)
    elif options.tls_client_auth_policy:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if options.tls_client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
