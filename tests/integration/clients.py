"""Helpers of most tests of nsqd: publish, consume, and read the statistics."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from nsq.testing import Nsqd, V2Client
from nsq.testing.v2 import Message
from nsq.wire import commands


def publish(nsqd: Nsqd, topic: str, bodies: Iterable[bytes]) -> None:
    reply = nsqd.post(f"/mpub?topic={_escaped(topic)}&binary=true", commands.pack_bodies(bodies), timeout=60)
    assert (reply.status, reply.body) == (200, b"OK")


def dial(address: str, timeout: float = 60.0) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout)


@contextmanager
def connected(nsqd: Nsqd, **identify: object) -> Iterator[V2Client]:
    """Return a client after IDENTIFY, with the longest heartbeat interval."""
    with V2Client(nsqd.tcp_address) as client:
        client.identify(**{"heartbeat_interval": 60_000, **identify})
        yield client


@contextmanager
def consumer(
    nsqd: Nsqd, topic: str, channel: str = "channel", rdy: int = 1, **identify: object
) -> Iterator[V2Client]:
    """Return a client that has subscribed, with RDY ``rdy``."""
    with connected(nsqd, **identify) as client:
        subscribe(client, topic, channel, rdy)
        yield client


def subscribe(client: V2Client, topic: str, channel: str = "channel", rdy: int = 1) -> None:
    client.send(commands.sub(topic, channel))
    client.expect_ok()
    client.send(commands.rdy(rdy))


def finish_all(client: V2Client, messages: Iterable[Message]) -> None:
    client.send(b"".join(commands.fin(message.id) for message in messages))


def stats(nsqd: Nsqd, query: str = "") -> dict[str, Any]:
    reply = nsqd.get(f"/stats?format=json&include_mem=false{query}", timeout=60)
    assert reply.status == 200
    answer: dict[str, Any] = reply.json()
    return answer


def topic_stats(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    """Return a topic's statistics; empty if it does not exist."""
    found: list[dict[str, Any]] | None = stats(nsqd, f"&topic={_escaped(topic)}")["topics"]
    return found[0] if found else {}


def channel_stats(nsqd: Nsqd, topic: str, channel: str = "channel") -> dict[str, Any]:
    """Return a channel's statistics; empty if it does not exist."""
    channels = topic_stats(nsqd, topic).get("channels", [])
    return next((each for each in channels if each["channel_name"] == channel), {})


def depth(nsqd: Nsqd, topic: str) -> int:
    """Return the number of messages that wait for the topic's first channel."""
    return int(topic_stats(nsqd, topic).get("depth", 0))


def take_all(nsqd: Nsqd, topic: str) -> list[bytes]:
    """Finish all messages of the topic, which must have no channel yet; return their bodies."""
    count = depth(nsqd, topic)
    bodies = []
    with V2Client(nsqd.tcp_address) as client:
        client.identify(output_buffer_timeout=25)
        subscribe(client, topic, "drain", 2500)
        for _ in range(count):
            message = client.expect_message()
            bodies.append(message.body)
            finish_all(client, [message])
        client.expect_silence(0.05)
    return bodies


@contextmanager
def frozen(nsqd: Nsqd) -> Iterator[None]:
    """Stop the process of nsqd during the block."""
    os.kill(nsqd.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(nsqd.pid, signal.SIGCONT)


def _escaped(name: str) -> str:
    return name.replace("#", "%23")
