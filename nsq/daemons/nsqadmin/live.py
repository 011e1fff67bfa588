"""The live tail of a topic, and sending dead letters back: both need a client.

The only module of the daemons that uses the client, which --client-opt configures. The client blocks, so it
runs in threads.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence

import nsq
from nsq.daemons.nsqadmin.aggregate import Json
from nsq.daemons.nsqadmin.cluster import Cluster
from nsq.daemons.nsqadmin.guard import reply_with
from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.routes import HttpError, Reply, Request
from nsq.daemons.worker_thread import in_thread

#: Messages that a tail keeps for the page, which shows as many, and bytes of each body.
_KEPT, _BODY_BYTES = 50, 64 * 1024
#: A tail that the page does not ask for this long is closed.
_IDLE_SECONDS = 15.0
_MAX_TAILS = 8
#: How long one request may send dead letters back; what is left then is for the next one.
_REDRIVE_SECONDS = 20.0
#: A tail without a connection after this long says why, and a redrive gives up after so long.
_TO_CONNECT, _REDRIVE_TO_CONNECT = 2.0, 5.0
_MAX_REDRIVES = 4
_STOP_SECONDS = 5.0
_THREADS = 8


class Live:
    """The open tails, by their id, and sending back."""

    def __init__(self, options: NsqadminOptions, cluster: Cluster) -> None:
        self._cluster = cluster
        self._config = client_config(options.client_opts)
        self._open: dict[str, Tail] = {}
        self._reaper: asyncio.Task[None] | None = None
        self._redriven: set[tuple[str, str]] = set()  # topics and channels

    # Following a topic

    async def open_tail(self, request: Request) -> Reply:
        """Only at nsqds where the topic has a channel: the first one would take what waits in the topic."""
        topic = request.params["topic"]
        nodes = await self._cluster.holders(topic)
        found = await self._cluster.stats(nodes.value, time.time(), topic=topic)
        safe = {told["node"] for told in found.value if told["channels"] and told["topic_name"] == topic}
        addresses = [node.told.tcp_address for node in nodes.value if node.name in safe]
        if not addresses:
            raise HttpError(409, "NO_CHANNEL")
        if len(self._open) >= _MAX_TAILS:
            raise HttpError(429, f"{_MAX_TAILS} live tails are open already: close one")
        name = secrets.token_urlsafe(16)
        try:
            tail = self._open[name] = Tail(topic, addresses, self._config)
            await in_thread(tail.start, "nsqadmin-tail-start")
        except nsq.NsqError as error:
            self._open.pop(name, None)
            raise HttpError(502, f"UPSTREAM_ERROR: {error}") from None
        if self._reaper is None or self._reaper.done():
            self._reaper = asyncio.get_running_loop().create_task(self._reap(), name="tail-reaper")
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
        """Before the topic is deleted: a tail would connect again, and make it anew."""
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

    # Sending dead letters back

    async def redrive(self, topic: str, channel: str, to: str) -> tuple[int, list[str]]:
        """Send what waits in the channel now to another topic, for as long as one request may take. Returns
        how many messages were sent, and why others were not.
        """
        topics = await self._cluster.topics()
        if to == topic or to not in topics.value:
            raise HttpError(400, "INVALID_TOPIC")
        nodes = await self._cluster.holders(topic)
        found = await self._cluster.stats(nodes.value, time.time(), topic=topic, channel=channel)
        failures = nodes.failures + found.failures
        waiting = 0
        for told in found.value:
            for each in told["channels"]:
                if not each["paused"]:
                    waiting += each["depth"]
                elif each["depth"]:
                    failures.append(f"{each['depth']} messages stay on {told['node']}: the channel is paused")
        addresses: list[str] = []
        for node in nodes.value:
            try:
                nsq.Consumer(topic, channel, nsqd=node.told.tcp_address)  # checks it
                addresses.append(node.told.tcp_address)
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
    """Read --client-opt. Nsqd judges how large a message may be, as it knows its own limit."""
    try:
        return nsq.Config.from_flags(given, {"max_msg_size": str(2**31 - 1)})
    except nsq.ConfigError as error:
        raise nsq.ConfigError(f"--client-opt: {error}") from None


class Tail:
    """Messages of one topic as they pass, through an ephemeral channel that goes away with the tail."""

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
        """Once it has had the time to connect."""
        return problem_of(self._consumer) if time.monotonic() - self._began > _TO_CONNECT else ""

    def after(self, number: int) -> tuple[int, list[Json]]:
        """The messages that came after this one, and the number to ask with next time."""
        kept = list(self._kept)
        return (kept[-1][0] if kept else number), [shown for count, shown in kept if count > number]

    def _keep(self, message: nsq.Message) -> None:
        self._count += 1  # there is one handler thread
        self._kept.append((self._count, _shown(message)))


def problem_of(consumer: nsq.Consumer) -> str:
    """Explain why no message can come, by what each nsqd said; empty if one is connected."""
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
    """Publish up to ``limit`` messages of a channel to another topic; how many were, within that time, and
    what was in the way.

    A message is finished when it has been published; an interruption can publish one twice and loses none.
    """
    lock, done = threading.Lock(), threading.Event()
    claimed = moved = 0
    failed = ""

    with nsq.Producer(nsqd=list(nsqds), config=config) as producer:

        def send(message: nsq.Message) -> None:
            nonlocal claimed, moved, failed
            with lock:
                if claimed >= limit:
                    raise nsq.Requeue(1.0, backoff=False)  # it has come back meanwhile
                claimed += 1
            try:
                producer.publish(to, message.body)
            except BaseException as error:
                with lock:
                    claimed -= 1
                    failed = str(error)
                raise
            with lock:
                moved += 1
                if moved >= limit:
                    done.set()

        consumer = nsq.Consumer(
            topic,
            channel,
            nsqd=list(nsqds),
            config=config,
            max_attempts=0,  # what failed often is what is to be sent back
            max_backoff_duration=0.0,
            default_requeue_delay=0.0,
        )
        consumer.add_handler(send, threads=_THREADS)
        consumer.start()
        if consumer.wait_until_connected(min(_REDRIVE_TO_CONNECT, seconds)):
            done.wait(seconds)
        problem = failed or problem_of(consumer)
        if not problem and consumer.stats().connections < len(nsqds):
            problem = "; ".join(consumer.health().discovery)
        consumer.stop(_STOP_SECONDS)
    problem = problem or f"the {seconds:g} s of one request are over; send the rest with another"
    return moved, "" if moved >= limit else f"{limit - moved} messages were not sent: {problem}"


def _shown(message: nsq.Message) -> Json:
    body = message.body[:_BODY_BYTES]
    try:
        told = {"encoding": "utf-8", "body": body.decode()}
    except UnicodeDecodeError:
        told = {"encoding": "base64", "body": base64.b64encode(body).decode()}
    return {
        "node": message.nsqd_address,
        "id": message.id.decode("latin-1"),
        "timestamp": message.timestamp,
        "age_ms": max(0, time.time_ns() - message.timestamp) // 1_000_000,
        "attempts": message.attempts,
        "size": len(message.body),
        "truncated": len(message.body) > len(body),
        **told,
    }
