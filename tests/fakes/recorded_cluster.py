"""A partitioned cluster that answers over HTTP as the real one was recorded: two nsqlookupds, three nsqds.

``/stats`` was recorded of nsqd1 alone. nsqd2 and nsqd3 give the recorded partitions that /nodes says they
lead, and replicas of those that nsqd1 leads. What changes something was not recorded: it is noted in
``posted``, and accepted where the real cluster's source accepts it.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

_RECORDED = json.loads((Path(__file__).parent.parent / "golden/partitioned_http.json").read_text("utf-8"))
_LOOKUPDS, _NSQDS = ("lookup1", "lookup2"), ("nsqd1", "nsqd2", "nsqd3")
_TO = {"nsqlookupd that leads": "lookup1", "nsqlookupd that follows": "lookup2"}
#: In the recordings nsqd1 is "leader of rec_plain-0".
_TO |= {"nsqd: leader of rec_plain-0": "nsqd1"}

Answer = tuple[int, str]


class RecordedCluster:
    """``ports`` are by the names of the recordings: ``lookup1:http``, ``nsqd1:tcp`` and so on."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.ports = ports
        self.posted: list[str] = []
        self._answers = {
            (_TO[each["to"]], each["path"]): (each["status"], self._with_ports(each["answer"]))
            for each in _RECORDED
            if each["method"] == "GET" and each["accept"] and each["to"] in _TO
        }
        nodes = json.loads(self._answers["lookup1", "/nodes"][1])["producers"]
        self._led = {node["http_port"]: node["partitions"] for node in nodes}

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.ports[f'{name}:http']}"

    def answer(self, name: str, method: str, target: str) -> Answer:
        if method == "POST":
            return self._post(name, target)
        url = urlsplit(target)
        if url.path == "/stats":
            args = dict(parse_qsl(url.query))
            return 200, json.dumps(self._stats(name, args.get("topic", ""), args.get("channel", "")))
        if url.path == "/info" and name in _NSQDS:
            return 200, self._answers["nsqd1", "/info"][1].replace(
                str(self.ports["nsqd1:http"]), str(self.ports[f"{name}:http"])
            )
        same = "lookup1" if name in _LOOKUPDS else "nsqd1"
        if target == "/lookup?topic=rec_ordered":
            target += "&metainfo=false"
        known = self._answers.get((name, target)) or self._answers.get((same, target))
        return known or self._answers[same, "/nosuch"]

    def _stats(self, name: str, topic: str, channel: str) -> dict[str, Any]:
        recorded = [
            json.loads(self._answers["nsqd1", f"/stats?format=json&topic={each}"][1])
            for each in ("rec_plain", "rec_ordered")
        ]
        led = self._led[self.ports[f"{name}:http"]]
        partitions = []
        for each in (one for stats in recorded for one in stats["topics"]):
            leads = each["topic_partition"] in led.get(each["topic_name"], ())
            if topic in ("", each["topic_name"]) and (leads or each["is_leader"] or name == "nsqd1"):
                channels = [one for one in each["channels"] if channel in ("", one["channel_name"])]
                partitions.append({**each, "is_leader": leads, "channels": channels})
        return {**recorded[0], "topics": partitions}

    def _post(self, name: str, target: str) -> Answer:
        self.posted.append(f"{name}{target}")
        url = urlsplit(target)
        args = dict(parse_qsl(url.query))
        if name in _LOOKUPDS and url.path == "/topic/delete":
            if args.get("partition") != "**":
                return 400, '{"message":"MISSING_ARG_TOPIC_PARTITION"}'
            return (200, "") if name == "lookup1" else (500, '{"message":"not nsqlookupd leader"}')
        if name in _LOOKUPDS or not url.path.startswith("/channel/"):
            return self._answers["nsqd1", "/nosuch"]
        led = self._led[self.ports[f"{name}:http"]]
        if args.get("partition") not in led.get(args["topic"], ()):
            return 400, '{"message":"E_FAILED_ON_NOT_LEADER"}'
        return 200, ""

    def _with_ports(self, text: str) -> str:
        return re.sub(r"<([a-z0-9]+:[a-z]+)>", lambda found: str(self.ports.get(found[1], 1)), text)


@contextmanager
def recorded_cluster() -> Iterator[RecordedCluster]:
    servers = {name: ThreadingHTTPServer(("127.0.0.1", 0), _Handler) for name in (*_LOOKUPDS, *_NSQDS)}
    ports = {f"{name}:http": server.server_address[1] for name, server in servers.items()}
    closed = {name: socket.create_server(("127.0.0.1", 0)) for name in _NSQDS}  # nothing answers there
    ports |= {f"{name}:tcp": each.getsockname()[1] for name, each in closed.items()}
    for each in closed.values():
        each.close()
    cluster = RecordedCluster(ports)
    threads = []
    for name, server in servers.items():
        server.recorded = (cluster, name)  # type: ignore[attr-defined]
        threads.append(threading.Thread(target=server.serve_forever, args=(0.01,), name=f"test-{name}"))
        threads[-1].start()
    try:
        yield cluster
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        cluster, name = self.server.recorded  # type: ignore[attr-defined]
        status, text = cluster.answer(name, self.command, self.path)
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8" if text != "OK" else "text/plain")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass
