"""The clients of the brokers, each used as its documentation shows it: one message a publish, an answer
before the next one, one acknowledgement for each message.

Each has ``publisher``, which returns a function that returns when a message is stored, and one for a batch;
and ``consume``, which hands over bodies and acknowledges each. Only the client that is asked for is imported.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

NAME = "bench"

Publish = Callable[[bytes], object]
PublishMany = Callable[[Sequence[bytes]], object]
#: Gets each body; returns False when it wants no more.
Handle = Callable[[bytes], bool]


class Client(Protocol):
    def __init__(self, port: int) -> None: ...

    def prepare(self) -> None:
        """Make the queue, and empty it."""

    def publisher(self) -> tuple[Publish, PublishMany]:
        """Return what one caller publishes with. Each caller's thread calls this once."""

    def consume(self, handle: Handle, prefetch: int) -> None: ...


class Nsq:
    """One producer for all threads; a consumer with one handler thread."""

    def __init__(self, port: int) -> None:
        import nsq

        self._nsq, self._address = nsq, f"127.0.0.1:{port}"
        self._producer = nsq.Producer(self._address)

    def prepare(self) -> None:
        consumer = self._nsq.Consumer(NAME, "work", nsqd=self._address, max_in_flight=0)
        consumer.add_handler(lambda _: None)
        with consumer:
            consumer.wait_until_connected(5.0)

    def publisher(self) -> tuple[Publish, PublishMany]:
        publish, publish_many = self._producer.publish, self._producer.multi_publish
        return lambda body: publish(NAME, body), lambda bodies: publish_many(NAME, bodies)

    def consume(self, handle: Handle, prefetch: int) -> None:
        over = threading.Event()
        consumer = self._nsq.Consumer(
            NAME, "work", nsqd=self._address, max_in_flight=prefetch, low_latency=True
        )

        def handler(message: Any) -> None:
            if not handle(message.body):
                over.set()

        consumer.add_handler(handler)
        with consumer:
            over.wait()


class RedisStreams:
    """A stream with a consumer group; one client for all threads."""

    def __init__(self, port: int) -> None:
        import redis

        self._redis = redis.Redis(port=port)

    def prepare(self) -> None:
        self._redis.delete(NAME)
        self._redis.xgroup_create(NAME, "work", id="0", mkstream=True)

    def publisher(self) -> tuple[Publish, PublishMany]:
        def publish_many(bodies: Sequence[bytes]) -> None:
            pipeline = self._redis.pipeline(transaction=False)
            for body in bodies:
                pipeline.xadd(NAME, {"body": body})
            pipeline.execute()

        return lambda body: self._redis.xadd(NAME, {"body": body}), publish_many

    def consume(self, handle: Handle, prefetch: int) -> None:
        client: Any = self._redis
        while True:
            for _, messages in client.xreadgroup("work", "one", {NAME: ">"}, count=prefetch, block=5000):
                for message_id, fields in messages:
                    more = handle(fields[b"body"])
                    client.xack(NAME, "work", message_id)
                    if not more:
                        return


class RedisLists:
    """A list, and a second one with the messages in work: the reliable pop."""

    def __init__(self, port: int) -> None:
        import redis

        self._redis = redis.Redis(port=port)

    def prepare(self) -> None:
        self._redis.delete(NAME, f"{NAME}:working")

    def publisher(self) -> tuple[Publish, PublishMany]:
        return lambda body: self._redis.lpush(NAME, body), lambda bodies: self._redis.lpush(NAME, *bodies)

    def consume(self, handle: Handle, prefetch: int) -> None:
        client: Any = self._redis
        more = True
        while more:
            body = client.blmove(NAME, f"{NAME}:working", 5)
            if body is not None:
                more = handle(body)
                client.lrem(f"{NAME}:working", 1, body)


class RabbitMq:
    """A quorum queue, persistent messages, publisher confirms; a connection for each thread."""

    def __init__(self, port: int) -> None:
        import pika

        self._pika, self._port = pika, port

    def _channel(self) -> Any:
        parameters = self._pika.ConnectionParameters("127.0.0.1", self._port)
        return self._pika.BlockingConnection(parameters).channel()

    def prepare(self) -> None:
        channel = self._channel()
        channel.queue_declare(NAME, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_purge(NAME)

    def publisher(self) -> tuple[Publish, PublishMany]:
        channel = self._channel()
        channel.confirm_delivery()
        persistent = self._pika.BasicProperties(delivery_mode=2)

        def publish(body: bytes) -> None:
            channel.basic_publish("", NAME, body, persistent, mandatory=True)

        def publish_many(bodies: Sequence[bytes]) -> None:
            for body in bodies:  # a BlockingConnection waits for each confirm
                publish(body)

        return publish, publish_many

    def filler(self) -> PublishMany:
        """Return what fills a queue fastest: without confirms, but with one round trip for all."""
        channel, persistent = self._channel(), self._pika.BasicProperties(delivery_mode=2)

        def publish_many(bodies: Sequence[bytes]) -> None:
            for body in bodies:
                channel.basic_publish("", NAME, body, persistent)
            channel.queue_declare(NAME, passive=True)

        return publish_many

    def consume(self, handle: Handle, prefetch: int) -> None:
        channel = self._channel()
        channel.basic_qos(prefetch_count=prefetch)
        for method, _, body in channel.consume(NAME):
            more = handle(body)
            channel.basic_ack(method.delivery_tag)
            if not more:
                channel.connection.process_data_events()
                channel.connection.close()
                return


class Beanstalkd:
    """A connection for each thread."""

    def __init__(self, port: int) -> None:
        import greenstalk

        self._greenstalk, self._address = greenstalk, ("127.0.0.1", port)

    def _client(self) -> Any:
        return self._greenstalk.Client(self._address, encoding=None)

    def prepare(self) -> None:
        client = self._client()
        while client.stats()["current-jobs-ready"]:
            client.delete(client.reserve())

    def publisher(self) -> tuple[Publish, PublishMany]:
        put = self._client().put

        def publish_many(bodies: Sequence[bytes]) -> None:
            for body in bodies:  # the protocol has no batch, and the client does not pipeline
                put(body)

        return put, publish_many

    def consume(self, handle: Handle, prefetch: int) -> None:
        client, more = self._client(), True
        while more:
            job = client.reserve()
            more = handle(job.body)
            client.delete(job)


class JetStream:
    """nats-py on asyncio: a caller is a task."""

    def __init__(self, port: int) -> None:
        self._url = f"nats://127.0.0.1:{port}"

    async def connect(self) -> tuple[Any, Any]:
        import nats

        connection = await nats.connect(self._url)
        return connection, connection.jetstream()

    async def prepared(self) -> None:
        from nats.js.errors import NotFoundError

        connection, stream = await self.connect()
        with suppress(NotFoundError):
            await stream.delete_stream(NAME)
        await stream.add_stream(name=NAME, subjects=[NAME])
        await connection.close()

    def prepare(self) -> None:
        asyncio.run(self.prepared())

    def publisher(self) -> tuple[Publish, PublishMany]:
        raise NotImplementedError("publishes are coroutines: see ``publish_for``")

    async def publish_batch(self, stream: Any, bodies: Sequence[bytes]) -> None:
        futures = [await stream.publish_async(NAME, body) for body in bodies]
        await asyncio.gather(*futures)

    async def consumed(self, handle: Handle, prefetch: int) -> None:
        from nats.errors import TimeoutError as NothingCame

        connection, stream = await self.connect()
        subscription = await stream.pull_subscribe(NAME, "work")
        more = True
        while more:
            try:
                messages = await subscription.fetch(prefetch, timeout=5)
            except NothingCame:
                continue
            for message in messages:
                more = handle(message.data) and more
                await message.ack()
        await connection.close()

    def consume(self, handle: Handle, prefetch: int) -> None:
        asyncio.run(self.consumed(handle, prefetch))


CLIENTS: dict[str, type[Any]] = {
    "nsq": Nsq,
    "redis-streams": RedisStreams,
    "redis-lists": RedisLists,
    "rabbitmq": RabbitMq,
    "jetstream": JetStream,
    "beanstalkd": Beanstalkd,
}


def publish_for(
    client: Any,
    callers: int,
    seconds: float,
    batch: int,
    body: bytes,
    a_second: float = 0.0,
    most: int = 10**9,
) -> int:
    """Publish for some seconds, or until each caller has published ``most``; return how many messages were
    stored. With ``a_second`` publish at this rate, with the time in each body.
    """
    if isinstance(client, JetStream):
        return asyncio.run(_publish_in_tasks(client, callers, seconds, batch, body, a_second, most))
    counts: queue.SimpleQueue[int] = queue.SimpleQueue()
    ready = threading.Barrier(callers)

    def call() -> None:
        publish, publish_many = client.publisher()
        bodies, count = [body] * batch, 0
        ready.wait()
        began = now = time.monotonic()
        while now < began + seconds and count < most:
            if a_second:
                time.sleep(max(0.0, began + count / a_second - now))
                publish(stamped(body))
            elif batch == 1:
                publish(body)
            else:
                publish_many(bodies)
            count += batch
            now = time.monotonic()
        counts.put(count)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts.get() for _ in threads)


async def _publish_in_tasks(
    client: JetStream, callers: int, seconds: float, batch: int, body: bytes, a_second: float, most: int
) -> int:
    connection, stream = await client.connect()

    async def call() -> int:
        count, began = 0, time.monotonic()
        while (now := time.monotonic()) < began + seconds and count < most:
            if a_second:
                await asyncio.sleep(max(0.0, began + count / a_second - now))
                await stream.publish(NAME, stamped(body))
            elif batch == 1:
                await stream.publish(NAME, body)
            else:
                await client.publish_batch(stream, [body] * batch)
            count += batch
        return count

    counts = await asyncio.gather(*[call() for _ in range(callers)])
    await connection.close()
    return sum(counts)


def stamped(body: bytes) -> bytes:
    return b"%.6f " % time.monotonic() + body


def age(body: bytes) -> float:
    return time.monotonic() - float(body.partition(b" ")[0])
