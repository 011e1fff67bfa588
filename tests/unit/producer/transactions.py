"""Transactions without a connection."""

from __future__ import annotations

from nsq.config import Config
from nsq.producer.request import publish_request
from nsq.producer.transaction import Transaction


class Slot:
    """A Holder that notes what is withdrawn from it."""

    def __init__(self, address: str = "nsqd-a:4150") -> None:
        self.address = address
        self.withdrawn: list[Transaction] = []

    def withdraw(self, transaction: Transaction) -> bool:
        self.withdrawn.append(transaction)
        return True


def transaction(body: bytes = b"body", *, deadline: float = 10.0) -> Transaction:
    return Transaction(publish_request("orders", body, None, Config()), 0.0, deadline)
