"""A large fake cluster for nsqadmin: the replies of its nsqds are prepared before."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

TOPICS, CHANNELS, NODES = 500, 5, 10


def stats(look: int, busy: range = range(TOPICS)) -> dict[str, Any]:
    """Return an nsqd's /stats for the n-th poll; busy topics have new messages at each."""
    return {
        "version": "1.3.0",
        "health": "OK",
        "start_time": 1_700_000_000,
        "topics": [_topic(number, look if number in busy else 0) for number in range(TOPICS)],
        "memory": {"heap_in_use_bytes": 50_000_000 + look, "gc_pause_usec_99": 800, "gc_total_runs": look},
        "producers": [],
    }


def _topic(number: int, look: int) -> dict[str, Any]:
    return {
        "topic_name": f"topic_{number:03}",
        "channels": [_channel(f"channel_{each}", 1000 + 40 * look + each) for each in range(CHANNELS)],
        "depth": 0,
        "backend_depth": 0,
        "message_count": 100_000 + 100 * look,
        "message_bytes": 20_000_000 + 20_000 * look,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


def _channel(name: str, depth: int) -> dict[str, Any]:
    return {
        "channel_name": name,
        "depth": depth,
        "backend_depth": 0,
        "in_flight_count": 20,
        "deferred_count": 1,
        "message_count": 100_000 + depth,
        "requeue_count": 7,
        "timeout_count": 0,
        "client_count": 4,
        "clients": [],
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
    }


class CannedNsqd(ThreadingHTTPServer):
    """Answers nsqadmin's requests as nsqd does; ``with`` starts and stops it."""

    daemon_threads = True

    def __init__(self, number: int) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        port = self.server_address[1]
        info = {"version": "1.3.0", "broadcast_address": "127.0.0.1", "hostname": f"node{number}"}
        self.answers = {
            "/info": json.dumps(info | {"http_port": port, "tcp_port": port, "start_time": 1}).encode(),
            "/config/mem_queue_size": b"10000",
        }
        self.address = f"127.0.0.1:{port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name=f"canned-nsqd-{number}")

    def say(self, stats: bytes) -> None:
        self.answers["/stats"] = stats

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Answers(BaseHTTPRequestHandler):
    server: CannedNsqd

    def do_GET(self) -> None:
        body = self.server.answers.get(self.path.partition("?")[0])
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Do not log."""
