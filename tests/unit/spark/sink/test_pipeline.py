from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future

import pytest

from nsq.errors import BadTopic, NsqError, PublishFailed, PublishUncertain

pytest.importorskip("pyspark")

from nsq.spark.sink import Pipeline

Sent = tuple[str, tuple[bytes, ...], float | None]


class Nsqd:
    """Remembers what it is sent, and answers in the order of ``answers``; then with OK."""

    def __init__(self, *answers: NsqError | None, patient: bool = False) -> None:
        self.sent: list[Sent] = []
        self.futures: list[Future[None]] = []
        self._answers = list(answers)
        self._patient = patient

    def publish_async(
        self, topic: str, body: bytes, *, defer: float | None = None, timeout: float | None = None
    ) -> Future[None]:
        return self._take((topic, (body,), defer))

    def multi_publish_async(
        self, topic: str, bodies: Iterable[bytes], *, timeout: float | None = None
    ) -> Future[None]:
        return self._take((topic, tuple(bodies), None))

    def _take(self, sent: Sent) -> Future[None]:
        self.sent.append(sent)
        future: Future[None] = Future()
        self.futures.append(future)
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            future.set_exception(answer)
        elif not self._patient:
            future.set_result(None)
        return future


def pipeline(nsqd: Nsqd, *, room: int = 10, retries: int = 2) -> Pipeline:
    return Pipeline(nsqd, room=room, retries=retries, timeout=1.0)


def test_messages_are_counted_when_nsqd_has_stored_them() -> None:
    nsqd = Nsqd()
    line = pipeline(nsqd)

    line.publish("orders", [b"one", b"two"])
    line.publish("later", [b"three"], 1.5)
    assert (line.messages, line.bytes) == (0, 0)
    line.drain()

    assert nsqd.sent == [("orders", (b"one", b"two"), None), ("later", (b"three",), 1.5)]
    assert (line.messages, line.bytes) == (3, 11)


def test_publishes_in_flight_are_limited() -> None:
    """The third waits for the first: so that is answered when it is asked for."""
    nsqd = Nsqd(patient=True)
    line = pipeline(nsqd, room=4)
    line.publish("orders", [b"1", b"2"])
    line.publish("orders", [b"3", b"4"])
    assert line.messages == 0

    nsqd.futures[0].set_result(None)
    line.publish("orders", [b"5"])

    assert (line.messages, len(nsqd.sent)) == (2, 3)
    nsqd.futures[1].set_result(None)
    nsqd.futures[2].set_result(None)
    line.drain()
    assert line.messages == 5


def test_a_publish_larger_than_the_limit_goes_alone() -> None:
    nsqd = Nsqd()
    line = pipeline(nsqd, room=1)

    line.publish("orders", [b"1", b"2", b"3"])
    line.publish("orders", [b"4", b"5"])
    assert line.messages == 3
    line.drain()

    assert line.messages == 5


@pytest.mark.parametrize("error", [PublishFailed("no nsqd"), PublishUncertain("no answer")])
def test_a_publish_that_may_succeed_later_is_repeated(error: NsqError) -> None:
    nsqd = Nsqd(error, error)
    line = pipeline(nsqd, retries=2)

    line.publish("orders", [b"one"])
    line.drain()

    assert nsqd.sent == [("orders", (b"one",), None)] * 3
    assert line.messages == 1


def test_a_publish_is_repeated_a_limited_number_of_times() -> None:
    nsqd = Nsqd(*[PublishFailed("no nsqd is there")] * 5)
    line = pipeline(nsqd, retries=1)

    line.publish("orders", [b"one"])
    with pytest.raises(PublishFailed, match="no nsqd is there"):
        line.drain()

    assert (len(nsqd.sent), line.messages) == (2, 0)


def test_a_publish_that_cannot_succeed_is_not_repeated() -> None:
    nsqd = Nsqd(BadTopic("E_BAD_TOPIC"))
    line = pipeline(nsqd)

    line.publish("orders", [b"one"])
    with pytest.raises(BadTopic):
        line.drain()

    assert len(nsqd.sent) == 1


def test_a_retry_takes_its_room_until_it_is_answered() -> None:
    nsqd = Nsqd(PublishFailed("not now"))
    line = pipeline(nsqd, room=2)
    line.publish("orders", [b"1", b"2"])

    line.publish("orders", [b"3"])

    assert [sent[1] for sent in nsqd.sent] == [(b"1", b"2"), (b"1", b"2"), (b"3",)]
    assert line.messages == 2
    line.drain()
    assert line.messages == 3
