"""The HTTP server of ``nsq_pubsub`` and of the health pages: where it listens."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from nsq.transport.addresses import split
from nsq.transport.sockets import address_family


def listen_address(text: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[::1]:8080``; ``:8080`` means every interface, and port 0 a free port."""
    text = f"0.0.0.0{text}" if text.startswith(":") else text
    if text.endswith(":0"):
        return split(f"{text[:-1]}1")[0], 0
    return split(text)


class HttpServer(ThreadingHTTPServer):
    def __init__(self, address: str, handler: type[BaseHTTPRequestHandler]) -> None:
        host, port = listen_address(address)
        self.address_family = address_family(host)
        super().__init__((host, port), handler)
