"""``nsq_pubsub``: publishes and subscribes over HTTP, for programs that only speak HTTP.

    POST /pub?topic=T              publishes the body
    GET  /sub?topic=T&channel=C    streams messages, one body per line; each is finished when it is written
    GET  /stats, /ping

There is no authentication: any client that reaches the port may publish to any topic and consume any channel.
"""

from __future__ import annotations

from nsq.threads.stop_signals import hold_signals

if __name__ == "__main__":
    hold_signals()  # before the other imports

import json
import select
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from nsq import Consumer, Message, NsqError, Producer, Requeue
from nsq.errors import ConfigError, PublishFailed, UsageError
from nsq.tools.program import ConsumerFlags, ProducerFlags, SignalWatch, config_of, flag, log, run
from nsq.transport.addresses import join
from nsq.wire.names import check_channel, check_topic
from nsq.work.listening import HttpServer, listen_address

PROG = "nsq_pubsub"
#: Largest body of a request, in bytes.
_LARGEST = 5 * 2**20
_MOST_CONNECTIONS = 1000
#: Seconds after which a client that sends nothing of its request, or reads nothing of the reply, is cut off.
_PATIENCE = 60.0
_STOP_TIMEOUT = 5.0
#: Seconds between two checks whether every nsqd refuses a subscription.
_REFUSED_EVERY = 5.0
#: The half of a connection that we shut down, so that writing can finish.
_READING = 0


@dataclass(frozen=True, kw_only=True)
class PubSubOptions(ConsumerFlags, ProducerFlags):
    http_address: str = flag("0.0.0.0:8080", "<addr>:<port> to listen on for HTTP clients")
    max_in_flight: int = flag(100, "max number of messages to allow in flight", low=1, high=2**31 - 1)

    def __post_init__(self) -> None:
        listen_address(self.http_address)
        config_of("--consumer-opt", [*self.reader_opt, *self.consumer_opt], {})  # check now, not at a request
        super().__post_init__()


def main(argv: Sequence[str] | None = None) -> int:
    return run(PubSubOptions, argv, PROG, serve)


def serve(options: PubSubOptions) -> int:
    with (
        SignalWatch() as watch,
        options.producer(
            PROG, *options.nsqd_tcp_address, nsqlookupd=options.lookupd_http_address
        ) as producer,
    ):
        try:
            server = PubSubServer(options, producer)
        except OSError as error:
            raise ConfigError(f"--http-address {options.http_address}: {error}") from None
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="nsq-pubsub")
        thread.start()
        log.info("listening on %s", options.http_address)
        watch.wait()
        server.shutdown()
        thread.join()
        server.server_close()
        return 0 if server.end_subscriptions(_STOP_TIMEOUT * 2) else 1


class PubSubServer(HttpServer):
    block_on_close = False  # a client that sends a byte a minute must not delay the end
    request_queue_size = 128

    def __init__(self, options: PubSubOptions, producer: Producer) -> None:
        self.options = options
        self.producer = producer
        self.published = 0
        self.subscriptions: set[ClientStream] = set()
        self._ended = threading.Condition()
        self._room = threading.Semaphore(_MOST_CONNECTIONS)
        super().__init__(options.http_address, Handler)

    def end_subscriptions(self, timeout: float) -> bool:
        """End all subscriptions; return whether they finished their written messages within the time."""
        for subscription in self.subscriptions.copy():
            subscription.end()
        with self._ended:
            return self._ended.wait_for(lambda: not self.subscriptions, timeout)

    def ended(self, subscription: ClientStream) -> None:
        with self._ended:
            self.subscriptions.discard(subscription)
            self._ended.notify_all()

    def count_published(self) -> None:
        with self._ended:
            self.published += 1

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            log.warning("refused %s: there are %d connections", client_address, _MOST_CONNECTIONS)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        threading.current_thread().name = f"nsq-pubsub-{join(*client_address[:2])}"
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("%s: %s", client_address, sys.exc_info()[1])


class Handler(BaseHTTPRequestHandler):
    server: PubSubServer
    timeout = _PATIENCE

    def parse_request(self) -> bool:
        """Refuse what a browser sends for a page of another site: it would publish or consume messages."""
        if not super().parse_request():
            return False
        site, origin = self.headers.get("Sec-Fetch-Site"), self.headers.get("Origin")
        # X-Forwarded-Host is the host that a proxy was asked for; no page can set it for another site.
        own = self.headers.get("Host"), self.headers.get("X-Forwarded-Host")
        ours = origin is None or origin.partition("://")[2] in own
        if site in ("same-origin", "none") or (site is None and ours):
            return True
        self._answer(HTTPStatus.FORBIDDEN, "CROSS_SITE_REQUEST")
        return False

    def do_POST(self) -> None:
        path, args = self._asked()
        if path != "/pub":
            self._answer(HTTPStatus.NOT_FOUND, "NOT_FOUND")
            return
        length = self.headers.get("Content-Length", "")
        plain = "Transfer-Encoding" not in self.headers
        if not (plain and length.isascii() and length.isdigit() and len(length) < 12):
            self._answer(HTTPStatus.LENGTH_REQUIRED, "a body needs a Content-Length")
            return
        if int(length) > _LARGEST:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {_LARGEST} bytes")
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):  # the client is gone, and the message is incomplete
            self.close_connection = True
            return
        try:
            self.server.producer.publish(args.get("topic", ""), body)
        except UsageError as error:
            self._answer(HTTPStatus.BAD_REQUEST, str(error))
        except NsqError as error:
            failed = isinstance(error, PublishFailed)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.BAD_GATEWAY, str(error))
        else:
            self.server.count_published()
            self._answer(HTTPStatus.OK, "OK")

    def do_GET(self) -> None:
        path, args = self._asked()
        if path == "/ping":
            self._answer(HTTPStatus.OK, "OK")
        elif path == "/stats":
            state = {
                "published": self.server.published,
                "subscriptions": [each.as_json() for each in self.server.subscriptions.copy()],
            }
            self._answer(HTTPStatus.OK, json.dumps(state) + "\n", "application/json")
        elif path == "/sub":
            self._subscribe(args)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "NOT_FOUND")

    def _subscribe(self, args: dict[str, str]) -> None:
        try:
            topic, channel = check_topic(args.get("topic", "")), check_channel(args.get("channel", ""))
            consumer = self.server.options.consumer(PROG, topic, channel)
        except NsqError as error:
            self._answer(HTTPStatus.BAD_REQUEST, str(error))
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        subscription = ClientStream(consumer, self)
        self.server.subscriptions.add(subscription)
        try:
            subscription.stream()
        finally:
            self.server.ended(subscription)
            self.close_connection = True

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        return parts.path, {name: values[-1] for name, values in parse_qs(parts.query).items()}

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None: ...


class ClientStream:
    """One client's stream. The consumer's handler thread writes; the request's thread waits for the end."""

    def __init__(self, consumer: Consumer, client: Handler) -> None:
        self._consumer = consumer.add_handler(self._write)
        self._client = client
        self._gone = False

    def as_json(self) -> dict[str, object]:
        stats = self._consumer.stats()
        return {
            "topic": self._consumer.topic,
            "channel": self._consumer.channel,
            "client": join(*self._client.client_address[:2]),
            "finished": stats.finished,
            "requeued": stats.requeued,
            "in_flight": stats.in_flight,
        }

    def stream(self) -> None:
        connection = self._client.connection
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        self._consumer.start()
        try:
            with suppress(OSError):
                while self._consumer.refusal is None:
                    if poll.poll(_REFUSED_EVERY * 1000) and not connection.recv(4096):
                        break  # the client has closed, or end() has
        finally:
            self._consumer.stop(_STOP_TIMEOUT)

    def end(self) -> None:
        with suppress(OSError):
            self._client.connection.shutdown(_READING)

    def _write(self, message: Message) -> None:
        if not self._gone:
            with suppress(OSError):
                self._client.wfile.write(message.body + b"\n")
                return
            self._gone = True
            self._consumer.pause()  # otherwise nsqd delivers the requeued messages again at once
            self.end()
        raise Requeue(0.0, backoff=False)


if __name__ == "__main__":
    sys.exit(main())
