"""A tiny HTTP endpoint with the health of consumers, for a plain ``run()``:

    with serving_health("127.0.0.1:8080", consumer):
        consumer.run()

    /live    200 until a consumer has stopped, then 503
    /ready   200 while messages can come to all consumers, else 503: Kubernetes' probes
    /health  the same status as /ready, and what ``health()`` says as JSON

A consumer that is paused or backs off is ready: it waits on purpose.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler

from nsq import Consumer
from nsq.consumer.reports import ConsumerHealth
from nsq.errors import ConfigError
from nsq.transport.addresses import join
from nsq.work.listening import HttpServer, listen_address

#: Seconds that a client may take for its request.
_REQUEST_SECONDS = 5
#: Seconds between two looks whether the server is to end.
_STEP = 0.1


@contextmanager
def serving_health(address: str, *consumers: Consumer) -> Iterator[str]:
    """Serve on ``host:port`` in the block, on own threads; give the address. Port 0 takes a free one."""
    if not consumers:
        raise ConfigError("serving_health needs at least one consumer")
    try:
        server = HttpServer(address, _page_of(consumers))
    except OSError as error:
        raise ConfigError(f"the health endpoint cannot listen on {address}: {error}") from error
    thread = threading.Thread(
        target=server.serve_forever, args=(_STEP,), name=f"nsq-health-{server.server_port}", daemon=True
    )
    thread.start()
    try:
        yield join(listen_address(address)[0], server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()  # waits for no request: they are short, and on daemon threads


def _page_of(consumers: tuple[Consumer, ...]) -> type[BaseHTTPRequestHandler]:
    class Page(BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS

        def do_GET(self) -> None:
            reports = [consumer.health() for consumer in consumers]
            path = self.path.partition("?")[0]
            good = {"/live": _is_live, "/ready": _is_ready, "/health": _is_ready}.get(path)
            if good is None:
                self._answer(404, {"error": f"there is no {path}: ask /live, /ready or /health"})
                return
            status = 200 if all(map(good, reports)) else 503
            content: dict[str, object] = {"ok": status == 200}
            if path == "/health":
                content["consumers"] = [
                    {"topic": consumer.topic, "channel": consumer.channel, **asdict(report)}
                    for consumer, report in zip(consumers, reports, strict=True)
                ]
            self._answer(status, content)

        def _answer(self, status: int, content: dict[str, object]) -> None:
            body = json.dumps(content).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log no requests."""

    return Page


def _is_live(report: ConsumerHealth) -> bool:
    return report.state != "stopped"


def _is_ready(report: ConsumerHealth) -> bool:
    waits = report.paused or report.backoff_level > 0
    return report.state == "running" and (report.ok or (waits and bool(report.connections)))
