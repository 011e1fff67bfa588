"""Other clients over TLS, snappy and deflate, as far as each supports them."""

from __future__ import annotations

import os
import ssl
from typing import Any

import pytest

from nsq.testing import Nsqd
from tests.integration.authority import Authority

from . import nsqds
from .driver import Drivers

Layers = tuple[str, ...]

CAN: dict[str, list[Layers]] = {
    "pynsq": [("tls",), ("snappy",), ("deflate",), ("tls", "snappy"), ("tls", "deflate")],
    "gnsq": [("tls",), ("snappy",), ("deflate",), ("tls", "snappy"), ("tls", "deflate")],
    "asyncnsq": [("tls",), ("tls", "snappy"), ("tls", "deflate")],
}

#: Not tested: with no nsqd does it work.
CANNOT = {
    "pynsq, large messages compressed": "a read that ends within a compressed block makes an OSError without "
    "an errno, for Tornado 6 a broken connection (nsqio/pynsq#258); small messages come through",
    "gnsq, Producer over TLS or compressed": "takes an upgrade's OK for a publication's and fails; "
    "its Consumer can, and so can its NsqdTCPClient, which stands in for it here",
    "gnsq, TLS without tls_options": "unpacks None (TypeError)",
    "ansq, TLS": "its _upgrade_to_tls raises NotImplementedError",
    "ansq, snappy": "its _upgrade_to_snappy raises NotImplementedError",
    "ansq, deflate": "its _upgrade_to_deflate raises NotImplementedError",
    "asyncnsq, snappy or deflate without TLS": "takes the compressed OK for a plain frame, and closes, if it "
    "arrives together with IDENTIFY's answer",
}

SMALL = sorted([b"short", bytes(1000), os.urandom(1000), os.urandom(50) * 20, bytes(range(256))])

#: Longer than any buffer on the way; some shrink, some do not, some do both within a frame.
LARGE = sorted([bytes(100_000), os.urandom(100_000), os.urandom(5_000) * 20, os.urandom(900_000)])

COMBINATIONS = [(client, layers) for client, able in CAN.items() for layers in able]
ANY_SIZE = [each for each in COMBINATIONS if each[0] != "pynsq" or each[1] == ("tls",)]


def each_of(combinations: list[tuple[str, Layers]]) -> pytest.MarkDecorator:
    ids = ["-".join([client, *layers]) for client, layers in combinations]
    return pytest.mark.parametrize(("client", "layers"), combinations, ids=ids)


def options_for(client: str, layers: Layers, authority: Authority) -> dict[str, Any]:
    """The options of a client: all share names. gnsq verifies the server only on request, asyncnsq never."""
    options: dict[str, Any] = {layer: True for layer in layers if layer != "tls"}
    if "tls" in layers and client == "asyncnsq":
        options |= {"tls_v1": True}
    elif "tls" in layers:
        trust = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": str(authority.certificate)}
        options |= {"tls_v1": True, "tls_options": trust}
    return options


def granted(clients: list[dict[str, Any]]) -> list[set[str]]:
    return [{layer for layer in ("tls", "snappy", "deflate") if client[layer]} for client in clients]


@each_of(COMBINATIONS)
def test_messages_go_through_the_layers_in_both_directions(
    client: str,
    layers: Layers,
    drivers: Drivers,
    shared_nsqd: Nsqd,
    authority: Authority,
    topic: str,
) -> None:
    driver, address = drivers.required(client), shared_nsqd.tcp_address
    options = options_for(client, layers, authority)
    with (
        driver.producer(address, **options) as producer,
        driver.consumer(topic, nsqd=address, **options) as consumer,
    ):
        producer.publish(topic, SMALL)
        producer.multi_publish(topic, SMALL)
        assert consumer.bodies(2 * len(SMALL)) == sorted(2 * SMALL)
        assert granted(nsqds.producers(shared_nsqd, topic)) == [set(layers)]
        assert granted(nsqds.consumers(shared_nsqd, topic)) == [set(layers)]
        nsqds.expect_drained(shared_nsqd, topic, 2 * len(SMALL))


@each_of(ANY_SIZE)
def test_large_and_many_messages_go_through_the_layers(
    client: str,
    layers: Layers,
    drivers: Drivers,
    shared_nsqd: Nsqd,
    authority: Authority,
    topic: str,
) -> None:
    """Reads end anywhere: within a frame, a record or a compressed block."""
    driver, address = drivers.required(client), shared_nsqd.tcp_address
    options = options_for(client, layers, authority)
    many = [os.urandom(number % 61 + 1) * (number % 7 + 1) for number in range(1000)]
    wanted = sorted([*LARGE, *many])
    with (
        driver.producer(address, **options) as producer,
        driver.consumer(topic, nsqd=address, max_in_flight=200, **options) as consumer,
    ):
        producer.publish(topic, wanted)
        assert consumer.bodies(len(wanted)) == wanted
        nsqds.expect_drained(shared_nsqd, topic, len(wanted))
