"""Every flag of Go's tools exists, with its default; and the odd values that Go's tools accept."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from nsq.flags import parse
from nsq.rate import Rate
from nsq.tools.destinations import StatusLines
from nsq.tools.nsq_stat import StatOptions
from nsq.tools.nsq_tail import TailOptions
from nsq.tools.nsq_to_file import ToFileOptions
from nsq.tools.nsq_to_http import ToHttpOptions
from nsq.tools.nsq_to_nsq import NsqToNsqOptions
from nsq.tools.to_nsq import ToNsqOptions

HTTP: dict[str, Any] = {"http_client_connect_timeout": 2.0, "http_client_request_timeout": 5.0}
CONSUMING: dict[str, Any] = {
    "nsqd_tcp_address": (),
    "lookupd_http_address": (),
    "max_in_flight": 200,
    "consumer_opt": (),
    "reader_opt": (),
}
FLAGS: dict[type[Any], dict[str, Any]] = {
    StatOptions: {
        **HTTP,
        "topic": "",
        "channel": "",
        "nsqd_http_address": (),
        "lookupd_http_address": (),
        "interval": 2.0,
        "count": None,
        "status_every": None,
    },
    TailOptions: {**CONSUMING, "topic": (), "channel": "", "n": 0, "print_topic": False},
    ToFileOptions: {
        **CONSUMING,
        **HTTP,
        "topic": (),
        "topic_pattern": "",
        "topic_refresh": 60.0,
        "channel": "nsq_to_file",
        "log_level": "info",
        "log_prefix": "[nsq_to_file] ",
        "output_dir": "/tmp",
        "work_dir": "",
        "datetime_format": "%Y-%m-%d_%H",
        "filename_format": "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "host_identifier": "",
        "gzip": False,
        "gzip_level": 6,
        "gzip_compression": 0,
        "skip_empty_files": False,
        "rotate_size": 0,
        "rotate_interval": 0.0,
        "sync_interval": 30.0,
    },
    ToHttpOptions: {
        **CONSUMING,
        **HTTP,
        "http_client_request_timeout": 20.0,
        "topic": "",
        "channel": "nsq_to_http",
        "post": (),
        "get": (),
        "header": (),
        "content_type": "application/octet-stream",
        "n": 100,
        "mode": "hostpool",
        "sample": 1.0,
        "status_every": 250,
        "round_robin": False,
        "throttle_fraction": None,
        "http_timeout": None,
        "http_timeout_ms": None,
        "max_backoff_duration": None,
    },
    NsqToNsqOptions: {
        **CONSUMING,
        "topic": (),
        "channel": "nsq_to_nsq",
        "destination_topic": "",
        "destination_nsqd_tcp_address": (),
        "mode": "hostpool",
        "status_every": 250,
        "require_json_field": "",
        "require_json_value": "",
        "whitelist_json_field": (),
        "producer_opt": (),
    },
    ToNsqOptions: {
        "topic": "",
        "nsqd_tcp_address": (),
        "delimiter": "\n",
        "rate": 0,
        "producer_opt": (),
    },
}


@pytest.mark.parametrize("options", FLAGS, ids=lambda options: options.__name__)
def test_flags_have_the_defaults_of_gos_tools(options: type[Any]) -> None:
    ours = {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in dataclasses.fields(options)
    }
    assert {name: ours.get(name, "missing") for name in FLAGS[options]} == FLAGS[options]


TOPIC, NSQD, POST = "--topic=t", "--nsqd-tcp-address=a:1", "--post=http://a/"
#: For each tool the flags that it needs.
NEEDED: dict[type[Any], list[str]] = {
    TailOptions: [TOPIC, NSQD],
    ToFileOptions: [TOPIC, NSQD],
    ToHttpOptions: [TOPIC, NSQD, POST],
    NsqToNsqOptions: [TOPIC, NSQD, "--destination-nsqd-tcp-address=b:1"],
    ToNsqOptions: [TOPIC, NSQD],
}


def given(options: type[Any], *flags: str) -> Any:
    return parse(options, [*NEEDED[options], *flags], prog="tool", config_flag=False).options


def test_what_means_never_or_no_limit_to_gos_tools_means_so_here() -> None:
    assert given(ToFileOptions, "--topic-refresh=0").topic_refresh == 0.0
    rotating = given(ToFileOptions, "--rotate-size=-1", "--rotate-interval=-1s")
    assert not rotating.needs_revision
    for options in (ToFileOptions, ToHttpOptions):
        timeouts = given(options, "--http-client-connect-timeout=0", "--http-client-request-timeout=0s")
        assert (timeouts.connect_timeout, timeouts.request_timeout) == (3600.0, 3600.0)
    assert given(TailOptions, "-n", "-1").most is None
    assert given(TailOptions, "-n", "3").most == 3
    for forwarding in (ToHttpOptions, NsqToNsqOptions):
        lines: list[str] = []
        every = given(forwarding, "--status-every=-1").status_every
        StatusLines(["a", "b"], every, lines.append).add("a", 1.0, 3)
        assert lines == []
    assert Rate(given(ToNsqOptions, "--rate=-5").rate, 1.0, now=0.0).take(100, 0.0) == 100


def test_nsq_to_file_gives_no_message_up_whatever_max_attempts_is() -> None:
    for option in ("--consumer-opt=max_attempts,5", "--reader-opt=max-attempts,65535"):
        options = given(ToFileOptions, option)
        assert options.consumer("p", "t", "c").config.max_attempts == 0
        assert options.given_max_attempts > 0  # for the warning
