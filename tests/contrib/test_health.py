"""The HTTP endpoint with the health of consumers."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

import nsq
from nsq.contrib.health import serving_health
from nsq.testing import Nsqd

PATIENCE = 60.0


def ask(address: str, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def until_ready(address: str, status: int) -> None:
    began = time.monotonic()
    while ask(address, "/ready")[0] != status:
        assert time.monotonic() < began + PATIENCE
        time.sleep(0.02)


def test_a_consumer_is_live_and_ready_while_messages_can_come(nsqd: Nsqd) -> None:
    consumer = nsq.Consumer("orders", "billing", nsqd=nsqd.tcp_address)
    consumer.add_handler(lambda message: None)
    with serving_health("127.0.0.1:0", consumer) as address:
        assert ask(address, "/live") == (200, {"ok": True})
        assert ask(address, "/ready") == (503, {"ok": False})
        with consumer:
            until_ready(address, 200)
            status, content = ask(address, "/health?verbose=1")
            assert (status, content["ok"]) == (200, True)
            (report,) = content["consumers"]
            assert (report["topic"], report["channel"], report["state"]) == ("orders", "billing", "running")
            assert report["connections"][0]["nsqd_address"] == nsqd.tcp_address
            consumer.pause()
            assert ask(address, "/ready") == (200, {"ok": True})
        assert ask(address, "/live") == (503, {"ok": False})
        assert ask(address, "/ready") == (503, {"ok": False})
        assert ask(address, "/else")[0] == 404


def test_a_consumer_without_an_nsqd_is_live_but_not_ready() -> None:
    consumer = nsq.Consumer("orders", "billing", nsqd="127.0.0.1:1").add_handler(lambda message: None)
    with serving_health("127.0.0.1:0", consumer) as address, consumer:
        assert ask(address, "/live")[0] == 200
        consumer.pause()
        assert ask(address, "/ready")[0] == 503
        assert ask(address, "/health")[1]["consumers"][0]["summary"]


def test_a_taken_port_and_a_missing_consumer_are_config_errors() -> None:
    consumer = nsq.Consumer("orders", "billing", nsqd="127.0.0.1:1")
    with (
        serving_health("127.0.0.1:0", consumer) as address,
        pytest.raises(nsq.ConfigError, match="cannot listen"),
        serving_health(address, consumer),
    ):
        raise AssertionError("two servers have one port")
    with pytest.raises(nsq.ConfigError, match="at least one"), serving_health("127.0.0.1:0"):
        raise AssertionError("it serves no consumer")
