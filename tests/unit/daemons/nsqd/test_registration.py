from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from nsq.daemons.nsqd import registration
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.topic import TopicStarting
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.registration import Registration
from nsq.daemons.serve.logs import DaemonLog
from nsq.errors import ApiError, ConfigError
from nsq.http.message import HttpReply, HttpRequest
from tests.fakes.clock import FakeClock


class Peer:
    """A connected nsqlookupd as the broker's observer uses it: gets commands, answers over HTTP."""

    def __init__(self, host: str) -> None:
        self.http = (host, 4161)
        self.told: list[bytes] = []

    def tell(self, command: bytes) -> None:
        self.told.append(command)


class Setup:
    """``channels`` says what each nsqlookupd knows; None is one that cannot be asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **channels: list[str] | None) -> None:
        self.broker = Broker(FakeClock())
        self.registration = Registration(self.broker, NsqdOptions(), DaemonLog("", "info", io.StringIO()))
        self.broker.observer = self.registration
        self.peers = {host: Peer(host) for host in channels}
        self.registration._peers.update(self.peers)  # type: ignore[arg-type]
        self.requests: list[HttpRequest] = []
        self._channels = channels
        self.gate = asyncio.Event()
        monkeypatch.setattr(registration, "send", self._send)

    async def _send(self, request: HttpRequest, **limits: Any) -> HttpReply:
        self.requests.append(request)
        await self.gate.wait()
        known = self._channels[request.url.host]
        if known is None:
            raise ApiError("refused")
        return HttpReply(200, {}, json.dumps({"channels": known}).encode())

    async def asked(self) -> None:
        self.gate.set()
        await asyncio.gather(*self.registration._asking)


def test_topics_and_channels_are_registered_and_unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        setup = Setup(monkeypatch, a=[])
        setup.broker.topic("t").channel("c")
        await setup.asked()
        setup.broker.delete_topic("t")
        assert setup.peers["a"].told == [
            b"REGISTER t\n", b"REGISTER t c\n", b"UNREGISTER t c\n", b"UNREGISTER t\n"
        ]  # fmt: skip

    asyncio.run(run())


def test_publishers_of_a_new_topic_wait_for_the_channels_that_others_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        setup = Setup(monkeypatch, a=["one", "e#ephemeral", "b@d"], b=["two", "one"], c=None)
        with pytest.raises(TopicStarting) as caught:
            setup.broker.publish("t", [b"x"])
        topic = caught.value.topic
        topic.when_started(lambda: setup.broker.publish("t", [b"x"]))
        await asyncio.sleep(0)
        assert topic.message_count == 0
        await setup.asked()
        assert {name: channel.depth for name, channel in topic.channels.items()} == {"one": 1, "two": 1}
        assert {request.url.target for request in setup.requests} == {"/channels?topic=t"}

    asyncio.run(run())


def test_a_new_topic_starts_when_registration_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        setup = Setup(monkeypatch, a=["one"])
        monkeypatch.setattr(Peer, "task", asyncio.ensure_future(asyncio.sleep(0)), raising=False)
        topic = setup.broker.topic("t")
        await setup.registration.close()  # before the question was even sent
        assert topic.started
        setup.broker.publish("t", [b"x"])

    asyncio.run(run())


def test_a_topic_deleted_while_its_channels_are_asked_for_is_not_registered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        setup = Setup(monkeypatch, a=["one"])
        setup.broker.topic("t")
        await asyncio.sleep(0)
        setup.broker.delete_topic("t")
        await setup.asked()
        assert setup.peers["a"].told == [b"REGISTER t\n", b"UNREGISTER t\n"]

    asyncio.run(run())


def test_a_topic_starts_at_once_without_nsqlookupds() -> None:
    broker = Broker(FakeClock())
    broker.observer = Registration(broker, NsqdOptions(), DaemonLog("", "info", io.StringIO()))
    assert broker.topic("t").started


@pytest.mark.parametrize("address", ["", "4160", ":4160", "h:x"])
def test_an_invalid_nsqlookupd_address_is_refused(address: str) -> None:
    broker = Broker(FakeClock())
    observer = Registration(broker, NsqdOptions(), DaemonLog("", "info", io.StringIO()))
    with pytest.raises(ConfigError):
        observer.set_addresses([address])
