"""Publish and receive over TLS. Verifies nsqd's certificate, and sends a client certificate if you give one:

    nsqd --tls-cert=server.pem --tls-key=server.key --tls-required
    python examples/tls_consumer.py nsqd.example.org:4150 authority.pem [client.pem client.key]

Without ``tls_ca_file`` it trusts the public authorities. For anything else pass an ``ssl.SSLContext`` as
``tls``.
"""

from __future__ import annotations

import sys
import threading

import nsq


def main(nsqd: str, authority: str, certificate: str | None = None, key: str | None = None) -> int:
    # Consumers and producers can share a Config, because it never changes.
    config = nsq.Config(
        tls=True,
        tls_ca_file=authority,
        tls_cert_file=certificate,
        tls_key_file=key,
        snappy=True,  # compressed, then encrypted
    )
    arrived = threading.Event()

    def handle(message: nsq.Message) -> None:
        print(f"received {message.body.decode()} from {message.nsqd_address}")
        arrived.set()

    with nsq.Consumer("secrets", "example", nsqd=nsqd, config=config).add_handler(handle) as consumer:
        if not consumer.wait_until_connected(5.0):
            print("\n".join(consumer.health().discovery), file=sys.stderr)
            return 1
        with nsq.Producer(nsqd, config=config) as producer:
            producer.publish("secrets", b"the combination is 4711")
        return 0 if arrived.wait(10.0) else 1


if __name__ == "__main__":
    if len(sys.argv) not in (3, 5):
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT AUTHORITY [CERTIFICATE KEY]")
    sys.exit(main(*sys.argv[1:]))
