"""The live tail of a topic, and the redrive of dead letters to another topic: both need the client.

This is the only module of the daemons that uses the client, which --client-opt configures. The client blocks,
so it runs in threads.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import time
from collections import deque
from collections.abc import Sequence

import nsq
from nsq.daemons.nsqadmin.aggregate import Json
from nsq.daemons.nsqadmin.cluster import Cluster
from nsq.daemons.nsqadmin.guard import reply_with
from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.nsqadmin.peek import opened_letter, text_or_base64
from nsq.daemons.serve.routes import HttpError, Reply, Request
from nsq.daemons.serve.worker_thread import in_thread
from nsq.work.redrive import Mover

#: The messages that a tail keeps for the page, and the bytes kept of each body.
_KEPT, _BODY_BYTES = 50, 64 * 1024
#: A tail that the page has not polled for this long is closed.
_IDLE_SECONDS = 15.0
_MAX_TAILS = 8
#: How long one redrive request may take; the next one sends the rest.
_REDRIVE_SECONDS = 20.0
#: A tail without a connection after this time reports why; a redrive gives up after this time.
_TO_CONNECT, _REDRIVE_TO_CONNECT = 2.0, 5.0
_MAX_REDRIVES = 4
_STOP_SECONDS = 5.0
_THREADS = 8


class Live:
    """The open tails by id, and redrives."""

    def __init__(self, options: NsqadminOptions, cluster: Cluster) -> None:
        self._cluster = cluster
        self._config = client_config(options.client_opts)
        self._open: dict[str, Tail] = {}
        self._reaper: asyncio.Task[None] | None = None
        self._redriven: set[tuple[str, str]] = set()  # topics and channels

    # Following a topic

    async def open_tail(self, request: Request) -> Reply:
        """Open a tail at those nsqds where the topic has a channel: as the first channel, the tail would take
        the topic's waiting messages.
        """
        topic = request.params["topic"]
        nodes = await self._cluster.holders(topic)
        found = await self._cluster.stats(nodes.value, time.time(), topic=topic)
        safe = {stats["node"] for stats in found.value if stats["channels"] and stats["topic_name"] == topic}
        addresses = [node.info.tcp_address for node in nodes.value if node.name in safe]
        if not addresses:
            raise HttpError(409, "NO_CHANNEL")
        if len(self._open) >= _MAX_TAILS:
            raise HttpError(429, f"{_MAX_TAILS} live tails are open already: close one")
        name = secrets.token_urlsafe(16)
        try:
            tail = self._open[name] = Tail(topic, addresses, self._config)
            if self._reaper is None or self._reaper.done():
                self._reaper = asyncio.get_running_loop().create_task(self._reap(), name="tail-reaper")
            await in_thread(tail.start, "nsqadmin-tail-start")
        except nsq.NsqError as error:
            self._open.pop(name, None)
            raise HttpError(502, f"UPSTREAM_ERROR: {error}") from None
        return reply_with({"id": name}, nodes.failures + found.failures)

    def tail(self, request: Request) -> Reply:
        text = request.args.get("after", "0")
        if not (text.isascii() and text.isdigit() and len(text) < 18):
            raise HttpError(400, "INVALID_ARG_AFTER")
        tail = self._open.get(request.params["id"])
        if tail is None:
            raise HttpError(404, "TAIL_NOT_FOUND")
        tail.asked = time.monotonic()
        number, messages = tail.after(int(text))
        return reply_with({"next": number, "messages": messages, "problem": tail.problem()}, [])

    async def close_tail(self, request: Request) -> Reply:
        await self._close(request.params["id"])
        return reply_with({}, [])

    async def close_tails(self, topic: str) -> None:
        """Close the topic's tails before it is deleted: they would reconnect and create it again."""
        await asyncio.gather(*(self._close(name) for name, tail in self._open.items() if tail.topic == topic))

    async def _close(self, name: str) -> None:
        tail = self._open.pop(name, None)
        if tail is not None:
            await in_thread(tail.stop, "nsqadmin-tail-stop")

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        await asyncio.gather(*map(self._close, list(self._open)))

    async def _reap(self) -> None:
        while self._open:
            oldest = min(tail.asked for tail in self._open.values())
            await asyncio.sleep(max(0.1, oldest + _IDLE_SECONDS - time.monotonic()))
            late = time.monotonic() - _IDLE_SECONDS
            for name in [name for name, tail in self._open.items() if tail.asked <= late]:
                await self._close(name)

    # Redriving dead letters

    async def redrive(self, topic: str, channel: str, to: str) -> tuple[int, list[str]]:
        """Publish the channel's waiting messages to another topic, for as long as one request may take.
        Returns how many messages were sent, and why others were not.
        """
        topics = await self._cluster.topics()
        if to == topic or to not in topics.value:
            raise HttpError(400, "INVALID_TOPIC")
        nodes = await self._cluster.holders(topic)
        found = await self._cluster.stats(nodes.value, time.time(), topic=topic, channel=channel)
        failures = nodes.failures + found.failures
        waiting = 0
        for stats in found.value:
            for each in stats["channels"]:
                if not each["paused"]:
                    waiting += each["depth"]
                elif each["depth"]:
                    failures.append(
                        f"{each['depth']} messages stay on {stats['node']}: the channel is paused"
                    )
        addresses: list[str] = []
        for node in nodes.value:
            try:
                nsq.Consumer(topic, channel, nsqd=node.info.tcp_address)  # checks the address
                addresses.append(node.info.tcp_address)
            except nsq.ConfigError as error:
                failures.append(f"{node.name}: {error}")
        if not waiting or not addresses:
            return 0, failures
        if (topic, channel) in self._redriven:
            raise HttpError(409, "its messages are being sent back already")
        if len(self._redriven) >= _MAX_REDRIVES:
            raise HttpError(429, f"messages of {_MAX_REDRIVES} channels are being sent back: try again later")
        work = functools.partial(
            redrive, topic, channel, to, addresses, self._config, limit=waiting, seconds=_REDRIVE_SECONDS
        )
        self._redriven.add((topic, channel))
        try:
            moved, problem = await in_thread(work, "nsqadmin-redrive")
        except nsq.NsqError as error:
            raise HttpError(502, f"UPSTREAM_ERROR: {error}") from None
        finally:
            self._redriven.discard((topic, channel))
        return moved, failures + ([problem] if problem else [])


def client_config(given: Sequence[str]) -> nsq.Config:
    """Read --client-opt. The client's message size is not limited, because nsqd enforces its own limit."""
    try:
        return nsq.Config.from_flags(given, {"max_msg_size": str(2**31 - 1)})
    except nsq.ConfigError as error:
        raise nsq.ConfigError(f"--client-opt: {error}") from None


class Tail:
    """Follows a topic through an ephemeral channel, which disappears with the tail."""

    def __init__(self, topic: str, nsqds: Sequence[str], config: nsq.Config) -> None:
        self.topic = topic
        self._kept: deque[tuple[int, Json]] = deque(maxlen=_KEPT)
        self._count = 0
        channel = f"nsqadmin_{secrets.token_hex(4)}#ephemeral"
        self._consumer = nsq.Consumer(
            topic, channel, nsqd=list(nsqds), config=config, max_in_flight=100, max_attempts=0
        )
        self._consumer.add_handler(self._keep)
        self.asked = self._began = time.monotonic()

    def start(self) -> None:
        self._consumer.start()

    def stop(self) -> None:
        self._consumer.stop(_STOP_SECONDS)

    def problem(self) -> str:
        """Say why there is no connection; empty if there is one, or while it may still be connecting."""
        return problem_of(self._consumer) if time.monotonic() - self._began > _TO_CONNECT else ""

    def after(self, number: int) -> tuple[int, list[Json]]:
        """Return the messages after this number, and the number for the next call."""
        kept = list(self._kept)
        return (kept[-1][0] if kept else number), [shown for count, shown in kept if count > number]

    def _keep(self, message: nsq.Message) -> None:
        self._count += 1  # there is one handler thread
        self._kept.append((self._count, _shown(message)))


def problem_of(consumer: nsq.Consumer) -> str:
    """Say for each nsqd why it is not connected; empty if one is connected."""
    if consumer.stats().connections:
        return ""
    return "no connection: " + "; ".join(consumer.health().discovery)


def redrive(
    topic: str,
    channel: str,
    to: str,
    nsqds: Sequence[str],
    config: nsq.Config,
    *,
    limit: int,
    seconds: float,
) -> tuple[int, str]:
    """Publish up to ``limit`` messages of a channel to another topic within ``seconds``. Returns how many
    were sent, and why others were not.
    """
    with nsq.Producer(nsqd=list(nsqds), config=config) as producer:
        mover = Mover(producer, to, limit)
        consumer = nsq.Consumer(
            topic,
            channel,
            nsqd=list(nsqds),
            config=config,
            max_attempts=0,  # dead letters have many attempts
            max_backoff_duration=0.0,
            default_requeue_delay=0.0,
        )
        consumer.add_handler(mover, threads=_THREADS)
        consumer.start()
        if consumer.wait_until_connected(min(_REDRIVE_TO_CONNECT, seconds)):
            mover.over.wait(seconds)
        problem = mover.error or problem_of(consumer)
        if not problem and consumer.stats().connections < len(nsqds):
            problem = "; ".join(consumer.health().discovery)
        consumer.stop(_STOP_SECONDS)
    problem = problem or f"the {seconds:g} s of one request are over; send the rest with another"
    moved = mover.moved
    return moved, "" if moved >= limit else f"{limit - moved} messages were not sent: {problem}"


def _shown(message: nsq.Message) -> Json:
    body = message.body[:_BODY_BYTES]
    encoded = opened_letter(body) or text_or_base64(body)
    return {
        "node": message.nsqd_address,
        "id": message.id.decode("latin-1"),
        "timestamp": message.timestamp,
        "age_ms": max(0, time.time_ns() - message.timestamp) // 1_000_000,
        "attempts": message.attempts,
        "size": len(message.body),
        "truncated": len(message.body) > len(body),
        **encoded,
    }
