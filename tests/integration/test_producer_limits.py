"""A producer's timeouts and limits, against nsqds that are silent, slow, or always refuse."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import nsq
from nsq.testing import Network, Nsqd

from .authority import Authority
from .clients import frozen

BODY = b"x" * 200
PATIENCE = 30.0


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("retry", [True, False])
def test_a_silent_nsqd_costs_read_timeout_and_the_next_is_used(warm: bool, retry: bool) -> None:
    with (
        Nsqd(process=True) as silent,
        Nsqd() as other,
        nsq.Producer(
            silent.tcp_address,
            read_timeout=1.1,
            heartbeat_interval=1.0,
            retry_uncertain=retry,
            publish_timeout=PATIENCE,
        ) as producer,
    ):
        if warm:
            for _ in range(50):
                producer.publish("silent", BODY)
        else:
            producer.publish("silent", BODY)
        with frozen(silent):
            started = time.monotonic()
            future = producer.publish_async("silent", BODY)
            producer.set_nsqds([silent.tcp_address, other.tcp_address])
            if retry:
                assert future.exception(PATIENCE) is None
            else:
                assert isinstance(future.exception(PATIENCE), nsq.PublishUncertain)
                producer.publish("silent", BODY)
            assert time.monotonic() - started < PATIENCE / 2


def test_write_timeout_demands_progress_and_not_a_fast_link() -> None:
    """A body of many megabytes over a link that is slow and healthy takes much longer than write_timeout."""
    large = {"max_msg_size": 2**30, "max_body_size": 2**30}
    with Nsqd(**large) as nsqd, Network() as network:
        link = network.link(nsqd.tcp_address)
        with nsq.Producer(link.address, write_timeout=0.5, publish_timeout=PATIENCE, **large) as producer:
            producer.publish("slow", BODY)
            link.throttle(12e6, towards="server")
            started = time.monotonic()
            producer.publish("slow", bytes(14 * 2**20))
            assert time.monotonic() - started > 1.0


def test_pending_bytes_are_bounded_and_each_caller_exceeds_the_bound_by_one_publish_at_most() -> None:
    """Of a process that publishes as fast as it can to an nsqd that has stopped to read."""
    size, limit, callers = 100_000, 2 * 2**20, 8
    with Nsqd(process=True) as nsqd:
        producer = nsq.Producer(nsqd.tcp_address, max_pending_bytes=limit)
        producer.publish("bytes", BODY)
        issued: list[int] = []

        def fill() -> None:
            with suppress(nsq.QueueFull):
                while True:
                    producer.publish_async("bytes", bytes(size), block=False)
                    issued.append(size)

        with frozen(nsqd):
            threads = [threading.Thread(target=fill) for _ in range(callers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
            assert limit <= sum(issued) <= limit + callers * size
            with pytest.raises(nsq.QueueFull, match="max_pending_bytes"):
                producer.publish("bytes", BODY, timeout=0.1)
        assert producer.flush(PATIENCE)
        producer.publish_async("bytes", BODY, block=False).result(PATIENCE)
        assert producer.close()


def at_once(call: Callable[[], object], error: type[nsq.NsqError], match: str) -> None:
    started = time.monotonic()
    with pytest.raises(error, match=match):
        call()
    assert time.monotonic() - started < PATIENCE / 3, "it was tried again, though that cannot help"


@pytest.mark.parametrize("wrong", ["TLS refused", "certificate", "AUTH"])
def test_a_lasting_error_is_raised_at_once(wrong: str, tmp_path: Path) -> None:
    """The next publish too, and the one after that."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = (Authority(tmp_path / name) for name in ("ours", "theirs"))
    daemon: dict[str, Any] = {
        "TLS refused": {},
        "certificate": theirs.server_options,
        "AUTH": {"auth_http_addresses": ("127.0.0.1:1",)},
    }[wrong]
    client: dict[str, Any] = {} if wrong == "AUTH" else {"tls": True, "tls_ca_file": str(ours.certificate)}
    errors = {"TLS refused": nsq.HandshakeFailed, "certificate": nsq.HandshakeFailed, "AUTH": nsq.AuthFirst}
    with (
        Nsqd(**daemon) as nsqd,
        nsq.Producer(nsqd.tcp_address, publish_timeout=PATIENCE, **client) as producer,
    ):
        for _ in range(3):
            at_once(lambda: producer.publish("final", BODY), errors[wrong], "TLS|certificate|AUTH")
