"""Registrations at an nsqlookupd with addresses that no client can dial: tools work on the other nsqds."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from nsq.http import nsqlookupd as parsing
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from nsq.tools.front_door import main
from nsq.transport.addresses import split
from nsq.wire import lookup
from tests.golden.recordings import others_are_judged

from .consuming import CHANNEL, TOPIC, create, publish, until

BAD: list[dict[str, Any]] = [
    {"http_port": 99999},
    {"tcp_port": 70000},
    {"broadcast_address": "u@h"},
    {"broadcast_address": "[::1"},
    {"broadcast_address": "unix:/x"},
]


def register(nsqlookupd: Nsqlookupd, **bad: Any) -> socket.socket:
    known = {"broadcast_address": "127.0.0.1", "hostname": "bad", "tcp_port": 1, "http_port": 1}
    info = lookup.PeerInfo(version="1.3.0", **{**known, **bad})
    connection = socket.create_connection(split(nsqlookupd.tcp_address))
    connection.sendall(lookup.MAGIC + lookup.identify(info) + lookup.register(TOPIC, CHANNEL))
    return connection


@pytest.fixture
def lookupd(nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd]) -> Iterator[Nsqlookupd]:
    """One with a good nsqd, which has a message, and all bad ones."""
    good = nsqd_factory(lookupd=[nsqlookupd])
    create(good)
    publish(good, [b"hello"])
    with ExitStack() as stack:
        for bad in BAD:
            stack.enter_context(register(nsqlookupd, **bad))

        def registered() -> int:
            reply = nsqlookupd.get(f"/lookup?topic={TOPIC}")
            return len(reply.json()["producers"]) if reply.status == 200 else 0

        until("registered", lambda: registered() == len(BAD) + 1)
        yield nsqlookupd


def test_commands_leave_out_nsqds_with_bad_registrations(
    lookupd: Nsqlookupd, capfd: pytest.CaptureFixture[str]
) -> None:
    both = f"{TOPIC}/{CHANNEL}"
    for words, output in (
        (["topics"], TOPIC),
        (["channels", TOPIC], CHANNEL),
        (["stat", f"--topic={TOPIC}", f"--channel={CHANNEL}", "--count=1", "--interval=1ms"], "depth"),
        *([] if others_are_judged() else [(["peek", both], "hello")]),  # Go's nsqd has no peek
        (["pause", both], "ok"),
        (["doctor"], "(TCP): answers"),
        (["empty", both, "--yes"], "ok"),
        (["delete", both, "--yes"], "ok"),
    ):
        parsing._warn.cache_clear()
        capfd.readouterr()
        main([*words, f"--lookupd-http-address={lookupd.http_address}"])
        said = capfd.readouterr()
        assert output in said.out, (words, said)
        assert said.err.count("bad registration") == len(BAD), (words, said)
