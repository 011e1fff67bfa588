"""A whole NSQ in one program: nsqlookupd, two nsqds, a publisher, two channels, and what came of it.

``make run`` starts this. Everything listens on free ports of 127.0.0.1 and is gone at the end.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections import Counter

from nsq.testing import Nsqd, Nsqlookupd, V2Client
from nsq.wire import commands
from nsq.wire.frames import FRAME_MESSAGE

TOPIC = "orders"
CHANNELS = ("billing", "archive")


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish orders, bill and archive each of them.")
    parser.add_argument("--messages", type=int, default=20_000)
    count: int = parser.parse_args().messages
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Nsqlookupd() as lookupd, Nsqd(lookupd=[lookupd]) as first, Nsqd(lookupd=[lookupd]) as second:
            demonstrate(lookupd, [first, second], count)
    except KeyboardInterrupt:
        print("\nstopped")


def demonstrate(lookupd: Nsqlookupd, nsqds: list[Nsqd], count: int) -> None:
    print(f"nsqlookupd  tcp {lookupd.tcp_address}  http {lookupd.http_address}")
    for nsqd in nsqds:
        print(f"nsqd        tcp {nsqd.tcp_address}  http {nsqd.http_address}")
        for channel in CHANNELS:
            nsqd.post(f"/topic/create?topic={TOPIC}")
            nsqd.post(f"/channel/create?topic={TOPIC}&channel={channel}")
    found = registered(lookupd, len(nsqds))
    print(f"nsqlookupd knows {len(found)} nsqds with the topic {TOPIC!r}: {', '.join(found)}\n")

    began = time.perf_counter()
    shares = publish(nsqds, count)
    published = time.perf_counter()
    received = {channel: consume(shares, channel) for channel in CHANNELS}
    done = time.perf_counter()

    print(f"published   {count:>8,} messages  {count / (published - began):>10,.0f} a second")
    for channel, counter in received.items():
        lost = sum(1 for number in range(count) if number not in counter)
        again = sum(counter.values()) - len(counter)
        print(f"{channel:<11} {sum(counter.values()):>8,} messages  {lost} lost, {again} twice")
    print(f"delivered at {count * len(CHANNELS) / (done - published):,.0f} messages a second")
    if any(len(counter) != count for counter in received.values()):
        raise SystemExit("messages were lost")


def registered(lookupd: Nsqlookupd, wanted: int) -> list[str]:
    """The addresses nsqlookupd gives, once every nsqd has told it of the topic."""
    deadline = time.monotonic() + 10
    while True:
        status, _, body = lookupd.get(f"/lookup?topic={TOPIC}")
        producers = json.loads(body)["producers"] if status == 200 else []
        if len(producers) >= wanted:
            return [f"{found['broadcast_address']}:{found['tcp_port']}" for found in producers]
        if time.monotonic() > deadline:
            raise SystemExit(f"nsqlookupd found {len(producers)} of {wanted} nsqds in 10 s")
        time.sleep(0.05)


def publish(nsqds: list[Nsqd], count: int, batch: int = 100) -> Counter[str]:
    """Every second batch to the other nsqd, each answered before the next is sent; who got how many."""
    shares: Counter[str] = Counter()
    clients = [V2Client(nsqd.tcp_address) for nsqd in nsqds]
    try:
        for start in range(0, count, batch):
            bodies = [b'{"order": %d}' % number for number in range(start, min(start + batch, count))]
            client = clients[start // batch % len(clients)]
            client.send(commands.mpub(TOPIC, bodies))
            client.expect_ok()
            shares[client.address] += len(bodies)
    finally:
        for client in clients:
            client.close()
    return shares


def consume(shares: Counter[str], channel: str) -> Counter[int]:
    """Take each nsqd's share of the channel; which orders came, and how often."""
    received: Counter[int] = Counter()
    for address, share in shares.items():
        with V2Client(address) as client:
            client.identify(client_id="demo")
            client.send(commands.sub(TOPIC, channel))
            client.expect_ok()
            client.send(commands.rdy(200))
            while share:
                frame = client.frame(timeout=10)
                if frame.type == FRAME_MESSAGE:
                    client.send(commands.fin(frame.message.id))
                    received[json.loads(frame.message.body)["order"]] += 1
                    share -= 1
    return received


if __name__ == "__main__":
    main()
