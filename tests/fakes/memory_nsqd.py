"""nsqds in memory that answer by themselves, without sockets, threads or a clock.

They know what stories about consumers need: one channel of each topic, RDY, FIN, REQ, TOUCH, CLS,
publishing, and of HTTP what ``tests.integration.consuming`` asks for. No message times out, and a requeued
one comes again at once: stories about nsqd's clock need a real nsqd.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from http.client import HTTPMessage
from itertools import count
from time import time_ns
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from nsq.errors import DialFailed
from nsq.testing.daemons.http import Reply
from nsq.transport.base import WrappedStream
from nsq.transport.memory import MemoryPeer, MemoryStream
from nsq.wire.commands import MAGIC_V2, Command, CommandParser, Limits, unpack_bodies
from nsq.wire.frames import CLOSE_WAIT, OK, encode_error, encode_message, encode_response

SUBSCRIBED, CLOSING = 3, 4


class MemoryNetwork:
    """A transport to the nsqds that it has made."""

    def __init__(self) -> None:
        self._nsqds: dict[str, MemoryNsqd] = {}

    def __call__(self, *, max_rdy_count: int = 2500, msg_timeout: float = 60.0) -> MemoryNsqd:
        """Start an nsqd that grants these values at IDENTIFY."""
        granted = {"max_rdy_count": max_rdy_count, "msg_timeout": round(msg_timeout * 1000)}
        nsqd = MemoryNsqd(f"nsqd-{len(self._nsqds)}:4150", self, granted)
        self._nsqds[nsqd.tcp_address] = nsqd
        return nsqd

    def connect(self, address: str, *, timeout: float) -> Client:
        nsqd = self._nsqds.get(address)
        if nsqd is None or not nsqd.running:
            raise DialFailed(f"cannot connect to {address}: Connection refused")
        return Client(nsqd)


class Stored(NamedTuple):
    id: bytes
    timestamp: int
    body: bytes
    attempts: int


class Channel:
    """The one channel of a topic."""

    def __init__(self) -> None:
        self.name = ""
        self.queue: deque[Stored] = deque()
        self.clients: list[Client] = []
        self.published = self.requeued = 0

    def pump(self) -> None:
        """Send what the clients' RDY allows, in turn."""
        while self.queue:
            ready = next((each for each in self.clients if each.ready), None)
            if ready is None:
                return
            self.clients.remove(ready)
            self.clients.append(ready)
            ready.deliver(self.queue.popleft())

    def stats(self) -> dict[str, Any]:
        return {
            "channel_name": self.name,
            "depth": len(self.queue),
            "in_flight_count": sum(len(each.in_flight) for each in self.clients),
            "message_count": self.published,
            "requeue_count": self.requeued,
            "client_count": len(self.clients),
            "clients": [each.stats() for each in self.clients],
            "deferred_count": 0,
            "timeout_count": 0,
        }


class MemoryNsqd:
    def __init__(self, address: str, network: MemoryNetwork, granted: dict[str, int]) -> None:
        self.tcp_address = address
        self.transport = network
        self.granted = granted
        self.running = True
        self.lock = threading.RLock()  # guards all below
        self.channels: dict[str, Channel] = {}
        self.connected: list[Client] = []
        self._ids = count(1)

    def channel(self, topic: str) -> Channel:
        return self.channels.setdefault(topic, Channel())

    def publish(self, topic: str, bodies: list[bytes]) -> None:
        assert all(bodies), "nsqd takes no empty message"
        with self.lock:
            channel = self.channel(topic)
            channel.queue += [Stored(b"%016d" % next(self._ids), time_ns(), body, 0) for body in bodies]
            channel.published += len(bodies)
            channel.pump()

    def stop(self, *, keep_data: bool = True) -> None:
        with self.lock:
            self.running = False
            for client in list(self.connected):
                client.end()

    def start(self) -> None:
        self.running = True

    def restart(self) -> None:
        self.stop()
        self.start()

    # HTTP

    def post(self, target: str, body: bytes = b"") -> Reply:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/channel/create":
            self.channel(query["topic"]).name = query["channel"]
        elif url.path in ("/pub", "/mpub"):
            self.publish(query["topic"], body.split(b"\n") if url.path == "/mpub" else [body])
        else:
            assert url.path == "/topic/create", target
        return Reply(200, HTTPMessage(), b"")

    def get(self, target: str) -> Reply:
        assert target.startswith("/stats?format=json&topic="), target
        topic = parse_qs(urlsplit(target).query)["topic"][0]
        with self.lock:
            stats = [self.channels[topic].stats()] if topic in self.channels else []
        depth = sum(each["depth"] for each in stats)
        topics = [{"topic_name": topic, "depth": depth, "channels": stats}]
        return Reply(200, HTTPMessage(), json.dumps({"topics": topics}).encode())


class Client(WrappedStream):
    """A connection: the client's stream, and what nsqd knows of it."""

    def __init__(self, nsqd: MemoryNsqd) -> None:
        self._peer = MemoryPeer(nsqd.tcp_address)
        super().__init__(MemoryStream(self._peer))
        self._nsqd = nsqd
        self._parser = CommandParser(Limits())
        self._magic = len(MAGIC_V2)  # bytes that are no commands
        self._channel: Channel | None = None
        self._rdy = self._delivered = 0
        self._state = SUBSCRIBED
        self.in_flight: dict[bytes, Stored] = {}
        with nsqd.lock:
            nsqd.connected.append(self)

    def write(self, data: bytes, timeout: float) -> None:
        super().write(data, timeout)
        with self._nsqd.lock:
            if self not in self._nsqd.connected:
                return
            commands = self._parser.feed(data[self._magic :])
            self._magic = 0
            while commands or self._parser.stopped:
                for command in commands:
                    self._carry_out(command)
                commands = self._parser.feed(b"") if self._parser.stopped else []
            if self._channel is not None:
                self._channel.pump()

    def close(self) -> None:
        super().close()
        self.end()

    def end(self) -> None:
        """Close nsqd's end: what was in flight goes to other clients."""
        with self._nsqd.lock:
            if self in self._nsqd.connected:
                self._nsqd.connected.remove(self)
                self._peer.end()
                if self._channel is not None:
                    self._channel.clients.remove(self)
                    self._channel.queue.extendleft(self.in_flight.values())
                    self._channel.pump()

    @property
    def ready(self) -> bool:
        return self._state == SUBSCRIBED and len(self.in_flight) < self._rdy

    def deliver(self, stored: Stored) -> None:
        stored = stored._replace(attempts=stored.attempts + 1)
        self.in_flight[stored.id] = stored
        self._delivered += 1
        self._peer.send(encode_message(stored.timestamp, stored.attempts, stored.id, stored.body))

    def stats(self) -> dict[str, Any]:
        return {
            "state": self._state,
            "ready_count": self._rdy,
            "in_flight_count": len(self.in_flight),
            "message_count": self._delivered,
        }

    def _carry_out(self, command: Command) -> None:
        name, params, body = command
        match name:
            case b"IDENTIFY":
                self._peer.send(encode_response(json.dumps(self._nsqd.granted).encode()))
            case b"SUB":
                self._channel = self._nsqd.channel(params[0].decode())
                self._channel.name = params[1].decode()
                self._channel.clients.append(self)
                self._peer.send(encode_response(OK))
            case b"RDY":
                self._rdy = int(params[0])
            case b"FIN" | b"REQ" | b"TOUCH":
                for each in params[:1] or body or ():
                    self._answer(name, bytes(each))
            case b"CLS":
                self._state = CLOSING
                self._peer.send(encode_response(CLOSE_WAIT))
            case b"PUB":
                assert isinstance(body, bytes)
                self._nsqd.publish(params[0].decode(), [body])
                self._peer.send(encode_response(OK))
            case b"MPUB":
                assert isinstance(body, bytes)
                self._nsqd.publish(params[0].decode(), unpack_bodies(body, Limits()))
                self._peer.send(encode_response(OK))
            case _:
                assert name == b"NOP", command

    def _answer(self, name: bytes, message_id: bytes) -> None:
        stored = self.in_flight.get(message_id)
        if stored is None:
            self._peer.send(encode_error(b"E_%s_FAILED %s %s failed" % (name, name, message_id)))
        elif name != b"TOUCH":
            del self.in_flight[message_id]
            assert self._channel is not None
            if name == b"REQ":
                self._channel.requeued += 1
                self._channel.queue.append(stored)
