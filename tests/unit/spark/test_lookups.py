"""Finding nsqds through nsqlookupds, without a network."""

from __future__ import annotations

import logging

import pytest

from nsq.config import Config
from nsq.errors import ApiError
from nsq.http.nsqlookupd import NsqdNode, NsqlookupdApi, RegisteredNode
from nsq.spark import lookups

GOOD = RegisteredNode(hostname="n1", broadcast_address="n1", tcp_port=4150, http_port=4151)
LOST = RegisteredNode(hostname="lost", broadcast_address="[::1", tcp_port=4150, http_port=4151)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registrations of nsqlookupd "a"; "b" does not answer."""

    def nodes(api: NsqlookupdApi) -> list[RegisteredNode]:
        if "b:" in repr(api):
            raise ApiError("b is away")
        return [GOOD, LOST]

    def nodes_of(api: NsqlookupdApi, topic: str) -> tuple[NsqdNode, ...]:
        return tuple(nodes(api)) if topic == "orders" else ()

    monkeypatch.setattr(NsqlookupdApi, "nodes", nodes)
    monkeypatch.setattr(NsqlookupdApi, "nodes_of", nodes_of)


@pytest.mark.parametrize("topics", [(), ("orders", "unheard_of")])
def test_an_nsqd_with_unusable_addresses_is_an_error_beside_the_others(topics: tuple[str, ...]) -> None:
    found, errors = lookups.places(["a:4161", "b:4161"], Config(), topics)
    assert found == [("n1:4150", "n1:4151", True)]
    away, lost = map(str, errors)
    assert away == "b is away"
    assert lost.startswith("lost is registered with addresses that cannot be used")


def test_errors_are_logged_and_raised_only_if_nothing_is_found(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="nsq.spark"):
        (place,) = lookups.places_or_raise(["a:4161", "b:4161"], Config())
    assert place.http == "n1:4151"
    assert len(caplog.records) == 2
    with pytest.raises(ApiError, match="b is away"):
        lookups.places_or_raise(["b:4161"], Config())
