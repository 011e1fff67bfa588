from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import cast

import pytest

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.core.broker import AT_ONCE
from nsq.daemons.serve.routes import OK, HttpError, Reply, Request
from nsq.wire.commands import pack_bodies
from tests.unit.daemons.nsqd.http.api import Api


def waiting(api: Api, topic: str = "t") -> list[bytes]:
    return [message.body for message in api.world.broker.topic(topic).backlog.take(1000)]


def test_pub_with_defer_delays_the_message() -> None:
    api = Api()
    channel = api.world.broker.topic("t").channel("c")
    assert api.ask("POST", "/pub?topic=t&defer=%2B1500", b"x") == OK
    assert api.ask("POST", "/pub?topic=t&defer=0", b"y") == OK
    assert (channel.depth, channel.deferred_count) == (1, 1)
    api.world.clock.advance(1.5)
    assert (channel.depth, channel.deferred_count) == (2, 0)


@pytest.mark.parametrize(
    ("target", "body", "refusal"),
    [
        ("/pub?topic=b@d", b"x" * 11, (413, "MSG_TOO_BIG")),
        ("/pub", b"", (400, "MSG_EMPTY")),
        ("/pub?topic=%zz", b"x", (400, "INVALID_REQUEST")),
        ("/pub?topic=", b"x", (400, "INVALID_TOPIC")),
        ("/pub?topic=b@d&defer=x", b"x", (400, "INVALID_TOPIC")),
        ("/pub?topic=t&defer=", b"x", (400, "INVALID_DEFER")),
        ("/pub?topic=t&defer=5001", b"x", (400, "INVALID_DEFER")),
        ("/pub?topic=t&defer=%C2%B2", b"x", (400, "INVALID_DEFER")),
        ("/pub?topic=t&defer=" + "9" * 5000, b"x", (400, "INVALID_DEFER")),
        ("/mpub", b"x" * 31, (413, "BODY_TOO_BIG")),
        ("/mpub", b"x", (400, "MISSING_ARG_TOPIC")),
        ("/mpub?topic=b@d", b"x" * 11, (400, "INVALID_TOPIC")),
        ("/mpub?topic=t", b"x\n" + b"y" * 11, (413, "MSG_TOO_BIG")),
        ("/mpub?topic=t&binary=true", b"x", (413, "BAD_BODY")),
        ("/mpub?topic=t&binary=1", pack_bodies([b"x"])[:-1], (413, "BAD_MESSAGE")),
        ("/mpub?topic=t&binary=true", pack_bodies([b"x" * 11]), (413, "BAD_MESSAGE")),
        ("/mpub?topic=t&binary=", b"a\nb", (413, "BAD_BODY")),
        ("/mpub?topic=t&binary", b"a\nb", (413, "BAD_BODY")),
    ],
)
def test_more_invalid_publishes_are_refused_in_gos_order(
    target: str, body: bytes, refusal: tuple[int, str]
) -> None:
    api = Api(max_msg_size=10, max_body_size=30, max_defer_timeout=5.0)
    assert api.refused("POST", target, body) == refusal
    assert api.world.broker.topics == {}


@pytest.mark.parametrize("binary", ["true", "1", "maybe", ""])
def test_an_mpub_may_be_binary(binary: str) -> None:
    api = Api()
    assert api.ask("POST", f"/mpub?topic=t&binary={binary}", pack_bodies([b"a\n", b"b"])) == OK
    assert waiting(api) == [b"a\n", b"b"]


def test_an_mpub_may_be_empty() -> None:
    api = Api()
    assert api.ask("POST", "/mpub?topic=t", b"\n\n") == OK
    assert api.ask("POST", "/mpub?topic=t", b"", headers={"Host": "h"}) == OK
    assert api.world.broker.topics == {} or waiting(api) == []


def begin_mpub(api: Api, messages: int) -> asyncio.Task[Reply]:
    body = b"x\n" * messages
    request = Request("POST", "/mpub?topic=t", body=body, headers={"Content-Length": str(len(body))})
    publishing = cast(Coroutine[None, None, Reply], api.router.find("POST", "/mpub")[0].handler(request))
    return asyncio.create_task(publishing)


def test_a_drain_lets_an_mpub_that_has_begun_end_and_refuses_later_ones() -> None:
    api = Api()
    broker = api.world.broker

    async def main() -> None:
        task = begin_mpub(api, 2 * AT_ONCE + 1)
        await asyncio.sleep(0)
        broker.draining = True
        assert (broker.topics["t"].message_count, len(broker.unfinished)) == (AT_ONCE, 1)
        assert await task == OK
        assert (broker.topics["t"].message_count, broker.unfinished) == (2 * AT_ONCE + 1, set())
        with pytest.raises(HttpError, match="503 EXITING"):
            await begin_mpub(api, 1)
        assert not broker.unfinished

    asyncio.run(main())


@pytest.mark.parametrize("target", ["/pub?topic=t", "/pub?topic=t&defer=1000", "/mpub?topic=t"])
def test_a_publish_that_one_of_two_channels_refuses_is_not_called_refused(target: str) -> None:
    api = Api()
    topic = api.world.broker.topic("t")
    topic.channel("willing")
    full = topic.channel("full")

    def refuse(messages: object) -> None:
        raise StorageFailed("disk full")

    full.backlog.put = full.deferred.add = refuse  # type: ignore[assignment, method-assign]
    assert api.refused("POST", target, b"x") == (500, "MAYBE_STORED")
    code = "MPUB_FAILED" if "mpub" in target else "PUB_FAILED"
    assert api.refused("POST", target, b"x") == (503, code)


@pytest.mark.parametrize("target", ["/pub?topic=t", "/pub?topic=t&defer=1000", "/mpub?topic=t"])
def test_a_publish_whose_sync_fails_is_not_called_refused(target: str) -> None:
    class Committer:
        async def wait_until_synced(self) -> None:
            raise StorageFailed("syncing to disk failed")

    api = Api(committer=Committer())
    assert api.refused("POST", target, b"x") == (500, "MAYBE_STORED")
    assert api.world.broker.topics["t"].depth == 1


def test_an_mpub_waits_until_hundreds_of_channels_have_got_its_messages() -> None:
    api = Api()
    topic = api.world.broker.topic("t")
    channels = [topic.channel(str(number)) for number in range(250)]

    async def main() -> int:
        task = begin_mpub(api, 500)
        deepest = 0
        while not task.done():
            await asyncio.sleep(0)
            deepest = max(deepest, topic.depth)
            api.world.clock.step()
        return deepest

    assert asyncio.run(main()) < 300
    api.world.clock.run_due()
    assert {channel.depth for channel in channels} == {500}


def test_names_may_be_escaped() -> None:
    api = Api()
    api.ask("POST", "/pub?topic=t%23ephemeral", b"x")
    assert waiting(api, "t#ephemeral") == [b"x"]
