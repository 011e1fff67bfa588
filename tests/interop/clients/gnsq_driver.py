"""Drives gnsq, patched as its users do it; orders arrive on a greenlet of their own."""

from __future__ import annotations

# ruff: noqa: E402  gevent patches before anything else is imported
from gevent import monkey

monkey.patch_all()

import functools
import sys
import time
from typing import Any

import gevent
import gnsq
import orders
from gevent.fileobject import FileObject

producers: dict[str, Any] = {}
consumers: dict[str, Any] = {}
treatments: dict[str, orders.Treatment] = {}


class Direct:
    """Publishes like a Producer, one order after the other, on gnsq's low-level connection.

    A Producer takes the OK of an upgrade for the answer to a publication, and fails: over TLS and compression
    this is what is left.
    """

    def __init__(self, nsqd: str, options: dict[str, Any]) -> None:
        host, _, port = nsqd.rpartition(":")
        self._conn = gnsq.NsqdTCPClient(host, int(port), **options)
        self._conn.connect()
        self._conn.identify()

    def publish(self, topic: str, body: bytes, defer: int | None = None, **waiting: Any) -> Direct:
        self._conn.publish(topic, body, defer=defer)
        return self

    def multipublish(self, topic: str, bodies: list[bytes], **waiting: Any) -> Direct:
        self._conn.multipublish(topic, bodies)
        return self

    def get(self, timeout: float) -> None:
        """The next confirmation; they come in order."""
        data = b"_heartbeat_"
        while data == b"_heartbeat_":
            _, data = self._conn.read_response()
        if isinstance(data, Exception):
            raise data

    def close(self) -> None:
        self._conn.close_stream()

    def join(self, timeout: float) -> None:
        """Do nothing: there is no other greenlet to wait for."""


def about() -> dict[str, str]:
    return {"version": gnsq.__version__, "module": gnsq.__file__}


def produce(name: str, nsqd: str, options: dict[str, Any]) -> None:
    if {"tls_v1", "snappy", "deflate"} & options.keys():
        producers[name] = Direct(nsqd, options)
        return
    producers[name] = gnsq.Producer([nsqd], max_backoff_duration=1, **encoded(options))
    producers[name].start()


def encoded(options: dict[str, Any]) -> dict[str, Any]:
    """The secret as bytes, which gnsq requires."""
    return {key: value.encode() if key == "auth_secret" else value for key, value in options.items()}


def connected(name: str) -> bool:
    """A Producer does not report this, and forgets a dead connection only when it needs one."""
    return any(conn.is_connected for conn in producers[name]._connections.queue)


def publish(name: str, topic: str, bodies: list[str]) -> None:
    confirmed(functools.partial(producers[name].publish, topic, body) for body in orders.bodies_of(bodies))


def multi_publish(name: str, topic: str, bodies: list[str]) -> None:
    confirmed([functools.partial(producers[name].multipublish, topic, orders.bodies_of(bodies))])


def defer(name: str, topic: str, bodies: list[str], delay_ms: int) -> None:
    confirmed(
        functools.partial(producers[name].publish, topic, body, defer=delay_ms)
        for body in orders.bodies_of(bodies)
    )


def confirmed(sends: Any) -> None:
    """Send all, then wait until nsqd has confirmed all."""
    for result in [send(timeout=60, raise_error=False) for send in sends]:
        result.get(timeout=60)


def consume(
    name: str,
    topic: str,
    channel: str,
    max_in_flight: int,
    treatment: dict[str, Any],
    options: dict[str, Any],
    nsqd: str | None = None,
    lookupd: str | None = None,
) -> None:
    treatments[name] = orders.Treatment(**treatment)
    consumer = consumers[name] = gnsq.Consumer(
        topic,
        channel,
        nsqd_tcp_addresses=[nsqd] if nsqd else [],
        lookupd_http_addresses=[f"http://{lookupd}"] if lookupd else [],
        message_handler=functools.partial(handle, treatments[name]),
        max_in_flight=max_in_flight,
        lookupd_poll_interval=0.3,
        lookupd_poll_jitter=0,
        max_backoff_duration=1,
        **encoded(options),
    )
    consumer.start(block=False)


def handle(treatment: orders.Treatment, consumer: Any, message: Any) -> None:
    """Returning finishes the message."""
    step = treatment(message)
    if step == "finish":
        return
    message.enable_async()
    if step == "requeue":
        message.requeue(treatment.requeue_ms, backoff=False)
    elif step == "touch":
        gevent.spawn(touched, message, *treatment.touch)


def touched(message: Any, interval: float, times: int) -> None:
    for _ in range(times):
        gevent.sleep(interval)
        message.touch()
    message.finish()


def received(name: str, count: int, within: float) -> list[Any]:
    treatment = treatments[name]
    deadline = time.monotonic() + within
    while len(treatment.received) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} messages: not within {within:g} s")
        gevent.sleep(orders.NAP)
    return treatment.received


def release(name: str) -> None:
    for message in treatments[name].release():
        message.finish()


def close(name: str) -> None:
    client = producers.pop(name, None) or consumers.pop(name)
    treatments.pop(name, None)
    client.close()
    client.join(timeout=30)


def serve() -> None:
    out = orders.answers()
    known = {
        each.__name__: each
        for each in (
            about,
            produce,
            connected,
            publish,
            multi_publish,
            defer,
            consume,
            received,
            release,
            close,
        )
    }
    for line in FileObject(sys.stdin.buffer, "rb"):
        name, arguments = orders.decode(line)
        try:
            answer = orders.encode_answer(known[name](**arguments))
        except Exception as error:
            answer = orders.encode_error(error)
        out.write(answer)
        out.flush()


serve()
