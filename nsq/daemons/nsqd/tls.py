"""The TLS contexts of nsqd, from its options."""

from __future__ import annotations

import ssl
import warnings

from nsq.daemons.nsqd.options import Options
from nsq.errors import ConfigError

_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}


def server_context(options: Options) -> ssl.SSLContext | None:
    """For TCP and HTTPS clients; None without a certificate."""
    if not options.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with warnings.catch_warnings():
        # TLS 1.0 and 1.1 are deprecated, and what Go's nsqd accepts unless told otherwise.
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = _VERSIONS[options.tls_min_version]
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as fault:
        raise ConfigError(
            f"--tls-cert {options.tls_cert!r}, --tls-key {options.tls_key!r}: {fault}"
        ) from None
    _demand_client_certificates(context, options)
    return context


def _demand_client_certificates(context: ssl.SSLContext, options: Options) -> None:
    """Both policies verify: Python's TLS cannot demand a certificate and then accept whatever it is."""
    if options.tls_root_ca_file:
        try:
            context.load_verify_locations(options.tls_root_ca_file)
        except (OSError, ssl.SSLError) as fault:
            raise ConfigError(f"--tls-root-ca-file {options.tls_root_ca_file!r}: {fault}") from None
    elif options.tls_client_auth_policy:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    if options.tls_client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
    elif options.tls_root_ca_file:
        # A client may introduce itself; one that does is verified, and an auth server learns its common name.
        context.verify_mode = ssl.CERT_OPTIONAL
