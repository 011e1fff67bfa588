"""Sessions under TLS, snappy, deflate and their combinations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsq.wire import commands
from nsq.wire.frames import RawMessage
from tests.fakes.session import HEARTBEAT, OK, World, new_layer

COMBINATIONS: list[tuple[str, ...]] = [
    (),
    ("tls_v1",),
    ("snappy",),
    ("deflate",),
    ("tls_v1", "snappy"),
    ("tls_v1", "deflate"),
]
combinations = pytest.mark.parametrize("layers", COMBINATIONS, ids=lambda layers: "+".join(layers) or "plain")
chunks = pytest.mark.parametrize("chunk", [None, 1, 17])


@combinations
@chunks
def test_everything_works_through_every_layer(layers: tuple[str, ...], chunk: int | None) -> None:
    world = World(tls=True)
    client = world.client(chunk=chunk)
    client.upgrade(layers)
    bodies = [b"a", b"b" * 5_000, bytes(range(256)) * 4]
    client.send(commands.mpub("t", bodies), commands.sub("t", "c"), commands.rdy(10))
    ok, subscribed, *messages = client.frames()
    assert (ok, subscribed) == (OK, OK)
    assert [m.body for m in messages if isinstance(m, RawMessage)] == bodies
    for message in messages:
        assert isinstance(message, RawMessage)
        client.send(commands.fin(message.id))
    assert client.frames() == []
    assert world.broker.topic("t").channels["c"].in_flight_count == 0
    world.clock.advance(30.0)
    assert client.frames() == [HEARTBEAT]


@combinations
def test_a_refusal_arrives_through_every_layer(layers: tuple[str, ...]) -> None:
    client = World(tls=True).client()
    client.upgrade(layers)
    assert client.refused(b"FOO\n") == b"E_INVALID invalid command FOO"
    assert client._stack.peer_closed is ("tls_v1" in layers)


# Bytes in the same chunk as IDENTIFY


def test_commands_behind_an_identify_whose_layer_is_not_granted_are_executed() -> None:
    client = World(snappy=False).client()
    assert client.identify(behind=commands.pub("t", b"x"), snappy=True)["snappy"] is False
    assert client.frames() == [OK]


@pytest.mark.parametrize("name", ["snappy", "deflate"])
def test_a_client_may_speak_through_its_compression_at_once(name: str) -> None:
    world = World()
    client = world.client()
    layer = new_layer(name)
    wanted: dict[str, Any] = {name: True}
    client.identify(behind=layer.wrap(commands.pub("t", b"first")), **wanted)
    client.push(layer)
    client.send(commands.pub("t", b"second"))
    assert client.frames() == [OK, OK, OK]
    assert world.broker.topic("t").depth == 2


def test_a_client_may_send_its_hello_at_once() -> None:
    client = World(tls=True).client()
    layer = new_layer("tls_v1")
    client.identify(behind=layer.pending(), tls_v1=True)
    client.push(layer)
    assert client.frame() == OK


@pytest.mark.parametrize("name", ["snappy", "deflate"])
def test_compressed_bytes_may_follow_the_handshake_at_once(name: str) -> None:
    """The client's last TLS flight and compressed commands in one chunk, before any OK was read."""
    world = World(tls=True)
    client = world.client()
    wanted: dict[str, Any] = {"tls_v1": True, name: True}
    client.identify(**wanted)
    tls, compression = new_layer("tls_v1"), new_layer(name)
    client.send_raw(tls.pending())
    world.clock.run_due()
    tls.unwrap(client.link.take())
    assert tls.handshake_done
    client.send_raw(tls.pending() + tls.wrap(compression.wrap(commands.pub("t", b"x"))))
    client.push(tls)
    assert client.frame() == OK  # of TLS
    client.push(compression)
    assert client.frames() == [OK, OK]


@pytest.mark.parametrize("name", ["snappy", "tls_v1"])
def test_plain_commands_behind_an_upgrade_are_never_executed(name: str) -> None:
    world = World(tls=True)
    client = world.client()
    body = json.dumps({"feature_negotiation": True, name: True}).encode()
    client.send(commands.identify(body), commands.pub("t", b"injected") * 3)
    assert client.link.finished
    assert world.broker.topics == {}
    client.drop()


def test_damaged_compression_ends_the_session_without_a_word() -> None:
    client = World().client()
    client.upgrade(["snappy"])
    client.send_raw(b"\x07garbage")
    assert client.frames() == []
    assert client.link.finished


def test_identify_again_may_change_terms_but_not_layers() -> None:
    client = World().client()
    client.upgrade(["snappy"])
    assert client.identify(msg_timeout=1234)["msg_timeout"] == 1234
    body = b'{"feature_negotiation":true,"deflate":true}'
    assert client.refused(commands.identify(body)) == b"E_INVALID cannot IDENTIFY in current state"


# TLS


def test_tls_required_refuses_all_commands_but_identify() -> None:
    world = World(tls=True, tls_required="true")
    for wire, verb in ((b"PUB t\n\0\0\0\1x", b"PUB"), (b"NOP\n", b"NOP"), (b"SUB t c\n", b"SUB")):
        client = world.client()
        client.identify()
        assert client.refused(wire) == b"E_INVALID cannot %s in current state (TLS required)" % verb
    client = world.client()
    client.upgrade(["tls_v1"])
    client.send(commands.pub("t", b"x"))
    assert client.frames() == [OK]


def test_no_heartbeat_comes_between_the_handshake_and_its_ok() -> None:
    world = World(tls=True)
    client = world.client()
    client.identify(tls_v1=True, heartbeat_interval=1000)
    world.clock.advance(1.5)
    client.push(new_layer("tls_v1"))
    assert client.frame() == OK
    world.clock.advance(0.5)
    assert client.frame() == HEARTBEAT
