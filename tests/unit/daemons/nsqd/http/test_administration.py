from __future__ import annotations

import pytest

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.core.broker import InMemory
from nsq.daemons.serve.routes import EMPTY, OK, HttpError
from nsq.wire import commands
from tests.unit.daemons.nsqd.http.api import Api

TOPIC_VERBS = ("create", "delete", "empty", "pause", "unpause")


@pytest.mark.parametrize("path", ["/{0}/{1}", "/{1}_{0}"])
def test_the_life_of_topics_and_channels_under_both_names(path: str) -> None:
    api = Api()

    def do(noun: str, verb: str) -> None:
        assert api.ask("POST", path.format(noun, verb) + "?topic=t&channel=c") == EMPTY

    do("topic", "create")
    do("topic", "create")
    topic = api.world.broker.topics["t"]
    do("channel", "create")
    do("channel", "create")
    channel = topic.channels["c"]
    for noun, thing in (("topic", topic), ("channel", channel)):
        do(noun, "pause")
        assert thing.paused
        do(noun, "unpause")
        assert not thing.paused
    api.world.broker.publish("t", [b"a"])
    do("channel", "empty")
    assert channel.depth == 0
    do("topic", "pause")
    api.world.broker.publish("t", [b"b"])
    do("topic", "empty")
    assert topic.depth == 0
    do("channel", "delete")
    assert topic.channels == {}
    do("topic", "delete")
    assert api.world.broker.topics == {}


def test_deleting_a_channel_disconnects_its_consumers() -> None:
    api = Api()
    clients = [api.client(), api.client()]
    for client, name in zip(clients, "cd", strict=True):
        client.send(commands.sub("t", name))
    api.ask("POST", "/channel/delete?topic=t&channel=c")
    assert [client.link.finished for client in clients] == [True, False]
    api.ask("POST", "/topic/delete?topic=t")
    assert [client.link.finished for client in clients] == [True, True]


def test_deleting_the_last_channel_deletes_an_ephemeral_topic() -> None:
    api = Api()
    api.ask("POST", "/topic/create?topic=t%23ephemeral")
    api.ask("POST", "/channel/create?topic=t%23ephemeral&channel=c")
    api.ask("POST", "/channel/delete?topic=t%23ephemeral&channel=c")
    assert api.world.broker.topics == {}


@pytest.mark.parametrize("verb", TOPIC_VERBS)
def test_invalid_topic_requests_are_refused(verb: str) -> None:
    api = Api()
    assert api.refused("POST", f"/topic/{verb}") == (400, "MISSING_ARG_TOPIC")
    assert api.refused("POST", f"/topic/{verb}?topic=%") == (400, "INVALID_REQUEST")
    checked = verb in ("create", "empty")
    wanted = (400, "INVALID_TOPIC") if checked else (404, "TOPIC_NOT_FOUND")
    assert api.refused("POST", f"/topic/{verb}?topic=b@d") == wanted
    if verb != "create":
        assert api.refused("POST", f"/topic/{verb}?topic=t") == (404, "TOPIC_NOT_FOUND")
    assert api.world.broker.topics == {}


@pytest.mark.parametrize("verb", TOPIC_VERBS)
def test_invalid_channel_requests_are_refused_in_gos_order(verb: str) -> None:
    api = Api()
    for args, refusal in [
        ("", (400, "MISSING_ARG_TOPIC")),
        ("?topic=b@d", (400, "INVALID_ARG_TOPIC")),
        ("?topic=t", (400, "MISSING_ARG_CHANNEL")),
        ("?topic=t&channel=b@d", (400, "INVALID_ARG_CHANNEL")),
        ("?topic=t&channel=c", (404, "TOPIC_NOT_FOUND")),
    ]:
        assert api.refused("POST", f"/channel/{verb}{args}") == refusal
    api.ask("POST", "/topic/create?topic=t")
    if verb != "create":
        assert api.refused("POST", f"/channel/{verb}?topic=t&channel=c") == (404, "CHANNEL_NOT_FOUND")
    assert api.world.broker.topics["t"].channels == {}


@pytest.mark.parametrize("target", ["/topic/create?topic=new", "/channel/create?topic=t&channel=new"])
def test_a_topic_or_channel_that_the_disk_refuses_is_answered_with_503(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api()
    api.world.broker.topic("t")

    def refuse(*_: object) -> None:
        raise StorageFailed("Too many open files")

    monkeypatch.setattr(InMemory, "backlog", refuse)
    assert api.refused("POST", target) == (503, "STORAGE_FAILED")


def test_an_nsqd_that_drains_creates_no_topics_and_channels() -> None:
    api = Api()
    for topic in ("full", "empty"):
        api.ask("POST", f"/topic/create?topic={topic}")
    api.world.broker.publish("full", [b"x"])
    assert "draining" not in api.json("/info")
    assert api.ask("PUT", "/config/drain", b"any body") == OK
    assert api.ask("PUT", "/config/drain") == OK
    assert api.orders.drain.is_set()
    assert not api.orders.stop.is_set()
    assert api.json("/info")["draining"] is True
    assert api.refused("POST", "/topic/create?topic=new") == (503, "EXITING")
    assert api.refused("POST", "/channel/create?topic=empty&channel=c") == (503, "EXITING")
    assert api.ask("POST", "/channel/create?topic=full&channel=c") == EMPTY
    assert api.refused("POST", "/channel/create?topic=full&channel=d") == (503, "EXITING")
    assert api.refused("GET", "/config/drain") == (400, "INVALID_OPTION")


@pytest.mark.parametrize("order", ["drain", "shutdown"])
def test_no_page_of_another_site_can_stop_an_nsqd(order: str) -> None:
    api = Api()
    with pytest.raises(HttpError, match="CROSS_SITE_REQUEST"):
        api.ask("PUT", f"/config/{order}", headers={"Origin": "https://evil.example"})
    assert not api.orders.drain.is_set()
    assert not api.orders.stop.is_set()
    assert not api.world.broker.draining
