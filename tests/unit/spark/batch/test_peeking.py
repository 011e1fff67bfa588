from __future__ import annotations

from nsq.message import Message
from nsq.spark.batch.peeking import Collection


class Nobody:
    """Nobody is answered here."""

    address = "a:4150"

    def finish(self, message: Message) -> None:
        raise AssertionError

    def finish_all(self, messages: list[Message]) -> None:
        raise AssertionError

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        raise AssertionError

    def touch(self, message: Message) -> None:
        raise AssertionError

    def holds(self, message: Message) -> bool:
        return True


def message(number: int) -> Message:
    return Message(Nobody(), 0.0, 60.0, number, 1, b"%016d" % number, b"body")


def test_what_comes_first_is_kept_and_the_rest_passes() -> None:
    collection = Collection(2)
    for number in range(3):
        collection(message(number))

    collection.wait(60.0)  # it is full: this does not wait

    assert [each.timestamp for each in collection.messages] == [0, 1]


def test_time_ends_the_wait_too() -> None:
    collection = Collection(2)
    collection(message(0))

    collection.wait(0.001)

    assert len(collection.messages) == 1
