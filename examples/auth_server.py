"""An auth server, which nsqd asks what a client's secret allows:

    python examples/auth_server.py 127.0.0.1:4181
    nsqd --auth-http-address=127.0.0.1:4181

    nsq.Producer("127.0.0.1:4150", auth_secret="producer-secret")
    nsq.Consumer("orders", "billing", nsqd="127.0.0.1:4150", auth_secret="billing-secret")

Topics and channels are regular expressions. nsqd sends the secret in the URL: use a private network, or put
https in front of this.
"""

from __future__ import annotations

import hmac
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

# Keep yours in a database, not in the source.
GRANTS = {
    "producer-secret": {
        "identity": "shop",
        "topic": "^orders$",
        "channels": [".*"],
        "permissions": ["publish"],
    },
    "billing-secret": {
        "identity": "billing",
        "topic": "^orders$",
        "channels": ["^billing$"],
        "permissions": ["subscribe"],
    },
}
TTL = 60  # seconds after which nsqd asks again, so that a secret can be withdrawn


def authorize(secret: str) -> dict[str, object]:
    """Return the answer to nsqd. An unknown secret gets an answer without permissions, not an error status,
    which would mean that the lookup failed and that another try may help.
    """
    for known, grant in GRANTS.items():
        if hmac.compare_digest(known.encode(), secret.encode()):
            return {"ttl": TTL, "identity": grant["identity"], "authorizations": [grant]}
    return {"ttl": TTL, "identity": "nobody", "authorizations": []}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        answer = authorize(query.get("secret", [""])[0])
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        print(f"{query.get('remote_ip', ['?'])[0]} is {answer['identity']}", flush=True)

    def log_message(self, *_: object) -> None:
        """Write no default log lines: they contain the query with the secret."""


def main(address: str) -> int:
    host, _, port = address.rpartition(":")
    with ThreadingHTTPServer((host, int(port)), Handler) as server:
        print(f"listening on {host}:{server.server_port}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:4181"))
