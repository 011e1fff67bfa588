"""Consumers for ``nsq work handlers``."""

from __future__ import annotations

import os

import nsq

NSQLOOKUPDS = os.environ.get("NSQLOOKUPD", "127.0.0.1:4161").split(",")


def bill(message: nsq.Message) -> None:
    print("billed", message.json(), flush=True)


consumer = nsq.Consumer("orders", "billing", nsqlookupd=NSQLOOKUPDS, threads=4, dead_letters="orders.dead")
consumer.add_handler(bill)
