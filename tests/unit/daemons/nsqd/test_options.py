from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from nsq.daemons.nsqd.options import TOPOLOGY_AWARE, NsqdOptions, default_node_id, parse_tls_required
from nsq.errors import ConfigError
from nsq.flags import parse


def options(*argv: str) -> NsqdOptions:
    return parse(NsqdOptions, argv, prog="nsqd").options


def test_defaults_are_those_of_the_go_daemon() -> None:
    given = options()
    expected = {
        "tcp_address": "0.0.0.0:4150",
        "http_address": "0.0.0.0:4151",
        "https_address": "0.0.0.0:4152",
        "broadcast_address": socket.gethostname(),
        "broadcast_tcp_port": 0,
        "broadcast_http_port": 0,
        "lookupd_tcp_addresses": (),
        "log_level": "info",
        "log_prefix": "[nsqd] ",
        "mem_queue_size": 10000,
        "msg_timeout": 60.0,
        "max_msg_timeout": 900.0,
        "max_msg_size": 1048576,
        "max_body_size": 5242880,
        "max_req_timeout": 3600.0,
        "max_defer_timeout": 3600.0,
        "sigterm_mode": "shutdown",
        "max_heartbeat_interval": 60.0,
        "max_rdy_count": 2500,
        "max_output_buffer_size": 65536,
        "output_buffer_timeout": 0.25,
        "min_output_buffer_timeout": 0.025,
        "max_output_buffer_timeout": 30.0,
        "max_channel_consumers": 0,
        "auth_http_request_method": "get",
        "http_client_connect_timeout": 2.0,
        "http_client_request_timeout": 5.0,
        "statsd_address": "",
        "statsd_prefix": "nsq.%s",
        "statsd_interval": 60.0,
        "statsd_mem_stats": True,
        "statsd_udp_packet_size": 508,
        "statsd_exclude_ephemeral": False,
        "e2e_processing_latency_percentiles": (),
        "e2e_processing_latency_window_time": 600.0,
        "queue_scan_worker_pool_max": 4,
        "max_message_size": 0,
        "queue_scan_selection_count": 20,
        "experiments": (),
        "tls_required": "false",
        "tls_min_version": "tls1.0",
        "deflate": True,
        "max_deflate_level": 6,
        "snappy": True,
    }
    assert {name: getattr(given, name) for name in expected} == expected
    assert not given.requires_tls
    assert not given.requires_https


def test_the_node_id_is_gos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "nsqd.example")
    assert default_node_id() == 752
    assert options().node_id == 752
    assert options("--node-id=7").node_id == 7


def test_a_config_file_has_gos_keys(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.cfg"
    file.write_text(
        'id = 5\nnsqlookupd_tcp_addresses = ["a:1"]\nauth_http_addresses = ["b:2"]\n'
        'msg_timeout = "5s"\ntls_required = false\n'
    )
    parsed = parse(NsqdOptions, [f"--config={file}"], prog="nsqd")
    assert parsed.warnings == ()
    given = parsed.options
    assert (given.node_id, given.lookupd_tcp_addresses, given.auth_http_addresses) == (5, ("a:1",), ("b:2",))
    assert (given.msg_timeout, given.tls_required) == (5.0, "false")


def test_an_empty_value_of_a_config_file_means_the_default(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.cfg"
    file.write_text('tls_cert = ""\ntls_key = ""\ntls_min_version = ""\n')
    assert parse(NsqdOptions, [f"--config={file}"], prog="nsqd").options == options()


CERT = {"tls_cert": "c", "tls_key": "k"}


@pytest.mark.parametrize(
    ("given", "tcp", "http"),
    [
        (CERT, False, False),
        (CERT | {"tls_required": "true"}, True, True),
        (CERT | {"tls_required": "tcp-https"}, True, False),
        (CERT | {"tls_client_auth_policy": "require"}, True, True),
        (CERT | {"tls_client_auth_policy": "require-verify", "tls_required": "tcp-https"}, True, False),
    ],
)
def test_tls_options_decide_which_clients_must_use_tls(given: dict[str, Any], tcp: bool, http: bool) -> None:
    made = NsqdOptions(**given)
    assert (made.requires_tls, made.requires_https) == (tcp, http)


def test_words_are_read_whatever_their_capitals() -> None:
    given = options("--log-level=WARN", "--tls-min-version=TLS1.2")
    assert (given.log_level, given.tls_min_version) == ("WARN", "tls1.2")
    assert parse_tls_required("TCP-HTTPS") == "tcp-https"
    assert options("--tls-min-version=").tls_min_version == "tls1.0"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_msg_timeout": float("nan")}, "--max-msg-timeout is nan"),
        ({"log_level": "loud"}, "log level 'loud'"),
        ({"tls_min_version": "ssl3"}, "--tls-min-version is 'ssl3'"),
    ],
)
def test_values_that_no_flag_can_have_are_refused_too(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NsqdOptions(**given)
    assert said in str(caught.value)


def test_an_empty_address_means_none_or_the_default() -> None:
    given = options("--http-address=", "--https-address=", "--broadcast-address=")
    assert (given.http_address, given.https_address) == ("", "")
    assert given.broadcast_address == socket.gethostname()
    lookupd = ("--lookupd-tcp-address=/run/lookupd.sock", "--broadcast-http-port=4151")
    assert options("--http-address=", *lookupd).lookupd_tcp_addresses == ("/run/lookupd.sock",)


def test_percentiles_are_listed_or_repeated_and_shown_largest_first() -> None:
    given = options("-e2e-processing-latency-percentile=0.5,0.99", "-e2e-processing-latency-percentile=1")
    assert given.e2e_processing_latency_percentiles == (1.0, 0.99, 0.5)
    assert options().e2e_processing_latency_percentiles == ()


@pytest.mark.parametrize("flag", ["queue-scan-worker-pool-max", "queue-scan-selection-count"])
def test_flags_without_effect_are_accepted_with_a_warning(flag: str) -> None:
    (warning,) = parse(NsqdOptions, [f"--{flag}=9"], prog="nsqd").warnings
    assert warning == f"--{flag} is deprecated: this nsqd does not scan its queues"


def test_keys_of_a_config_file_may_differ_from_flags(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.cfg"
    file.write_text(
        'e2e_processing_latency_percentiles = [0.95, 1.0]\ne2e_processing_latency_window_time = "5m"\n'
        'statsd_address = "a:8125"\nstatsd_mem_stats = false\nstatsd_udp_packet_size = 1400\n'
        'enable_experiment = ["topology-aware-consumption"]\nqueue_scan_selection_count = 5\n'
    )
    parsed = parse(NsqdOptions, [f"--config={file}"], prog="nsqd")
    assert len(parsed.warnings) == 1
    given = parsed.options
    assert given.e2e_processing_latency_percentiles == (1.0, 0.95)
    assert given.e2e_processing_latency_window_time == 300.0
    assert (given.statsd_address, given.statsd_mem_stats, given.statsd_udp_packet_size) == (
        "a:8125",
        False,
        1400,
    )
    assert given.experiments == (TOPOLOGY_AWARE,)


def test_the_old_name_of_the_largest_message() -> None:
    parsed = parse(NsqdOptions, ["--max-message-size=100"], prog="nsqd")
    assert parsed.options.max_msg_size == 100
    assert parsed.warnings == ("--max-message-size is deprecated: use --max-msg-size",)


def test_a_deferral_may_be_as_long_as_a_requeue_unless_it_has_a_limit_of_its_own() -> None:
    assert NsqdOptions(max_req_timeout=5.0).max_defer_timeout == 5.0
    assert NsqdOptions(max_req_timeout=5.0, max_defer_timeout=9.0).max_defer_timeout == 9.0
