"""An nsqd in memory that answers the HTTP requests that tests of the client make."""

from __future__ import annotations

import json
from http.client import HTTPMessage
from urllib.parse import parse_qs, urlsplit

from nsq.testing.daemons.http import Reply
from nsq.testing.memory_nsqd import MemoryNsqd


class MemoryNsqdWithHttp(MemoryNsqd):
    def post(self, target: str, body: bytes = b"") -> Reply:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path in ("/topic/create", "/channel/create"):
            self.create(**query)
        elif url.path in ("/pub", "/mpub"):
            self.publish(query["topic"], *(body.split(b"\n") if url.path == "/mpub" else [body]))
        else:
            raise AssertionError(f"no test needed POST {target} before")
        return Reply(200, HTTPMessage(), b"")

    def get(self, target: str) -> Reply:
        """Answer ``/stats``, with all topics and channels."""
        assert target.startswith("/stats?format=json"), target
        return Reply(200, HTTPMessage(), json.dumps(self.stats()).encode())
