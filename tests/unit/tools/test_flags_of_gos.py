"""Every flag of Go's tools exists, with its default."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

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
