"""Flags that the tools share, and options in go-nsq's names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from nsq import Config
from nsq.tools.program import ConsumerFlags, ProducerFlags, config_of, log, run

OPTIONS: list[tuple[str, dict[str, object]]] = [
    ("tls_v1,true", {"tls": True}),
    ("tls-v1", {"tls": True}),
    ("tls_v1 tls_root_ca_file,/ca.pem", {"tls": True, "tls_ca_file": "/ca.pem"}),
    ("tls_v1 tls_insecure_skip_verify", {"tls": True, "tls_verify": False}),
    ("tls_v1 tls_insecure_skip_verify,false", {"tls": True}),
    ("tls_v1 tls_cert,/c tls_key,/k", {"tls": True, "tls_cert_file": "/c", "tls_key_file": "/k"}),
    ("tls_v1 tls_min_version,tls1.0", {"tls": True}),
    ("tls_v1 tls_min_version,tls1.3", {"tls": True, "tls_min_version": "TLSv1.3"}),
    ("local_addr,10.0.0.1", {"local_address": "10.0.0.1"}),
    ("msg_timeout,5000", {"msg_timeout": 5.0}),
    ("msg-timeout,1m30s", {"msg_timeout": 90.0}),
    ("heartbeat_interval,-1", {"heartbeat_interval": -1.0}),
    ("output_buffer_timeout,-1", {"output_buffer_timeout": -1.0}),
    ("output_buffer_size,-1", {"output_buffer_size": -1}),
    ("max_attempts,9 max_attempts,7", {"max_attempts": 7}),
    ("snappy", {"snappy": True}),
    ("deflate,T deflate_level,9", {"deflate": True, "deflate_level": 9}),
    ("backoff_strategy,full_jitter", {"backoff_strategy": "full_jitter"}),
    ("auth_secret,a,b", {"auth_secret": "a,b"}),
    ("skip_lookupd_authorization,true", {"lookupd_authorization": "always"}),
    ("skip_lookupd_authorization,0", {"lookupd_authorization": "never"}),
    ("dial_timeout,2s read_timeout,70s write_timeout,3000",
     {"dial_timeout": 2.0, "read_timeout": 70.0, "write_timeout": 3.0}),
    ("lookupd_poll_interval,30s lookupd_poll_jitter,0.1 lookupd_poll_timeout,2s",
     {"lookupd_poll_interval": 30.0, "lookupd_poll_jitter": 0.1, "lookupd_poll_timeout": 2.0}),
    ("max_requeue_delay,10m default_requeue_delay,1m",
     {"max_requeue_delay": 600.0, "default_requeue_delay": 60.0}),
    ("backoff_strategy,exponential backoff_multiplier,500 max_backoff_duration,1m",
     {"backoff_multiplier": 0.5, "max_backoff_duration": 60.0}),
    ("low_rdy_idle_timeout,2s low_rdy_timeout,3s rdy_redistribute_interval,1s",
     {"low_rdy_idle_timeout": 2.0, "low_rdy_timeout": 3.0, "rdy_redistribute_interval": 1.0}),
    ("client_id,c hostname,h topology_region,r topology_zone,z",
     {"client_id": "c", "hostname": "h", "topology_region": "r", "topology_zone": "z"}),
    ("sample_rate,10 max_in_flight,7 user_agent,me",
     {"sample_rate": 10, "max_in_flight": 7, "user_agent": "me"}),
    ("max_msg_size,0 output_buffer_size,0 heartbeat_interval,0s",  # without limit, or as nsqd has it
     {"max_msg_size": 2**31 - 1, "output_buffer_size": 16384}),
    ("dial_timeout,0 lookupd_poll_timeout,0", {"dial_timeout": 300.0, "lookupd_poll_timeout": 300.0}),
    ("tls tls_ca_file,/ca.pem", {"tls": True, "tls_ca_file": "/ca.pem"}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "meant"), OPTIONS, ids=[given for given, _ in OPTIONS])
def test_options_have_the_names_of_go_nsq_or_ours(given: str, meant: dict[str, object]) -> None:
    assert config_of("--consumer-opt", given.split(), {}) == Config(**meant)  # type: ignore[arg-type]


def test_a_given_option_replaces_the_tools_default() -> None:
    defaults = {"max_attempts": "0"}
    assert config_of("--consumer-opt", [], defaults).max_attempts == 0
    assert config_of("--consumer-opt", ["max-attempts,5"], defaults).max_attempts == 5


def test_consumers_and_producers_of_tools_ask_nsqlookupds_with_the_http_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQ_HTTP_SECRET", "of-the-environment")
    source = {"lookupd_http_address": ("a:4161",)}
    assert ConsumerFlags(**source).consumer_config().http_secret == "of-the-environment"
    file = tmp_path / "secret"
    file.write_text("of-the-file")
    assert ConsumerFlags(**source, http_secret_file=str(file)).consumer_config().http_secret == "of-the-file"
    given = ConsumerFlags(**source, consumer_opt=("http_secret,given",))
    assert given.consumer_config().http_secret == "given"
    with ProducerFlags(http_secret_file=str(file)).producer("nsq-pub", "a:4150") as producer:
        assert producer.config.http_secret == "of-the-file"


@dataclass(frozen=True, kw_only=True)
class ToolOptions(ConsumerFlags):
    pass


def work(options: ToolOptions) -> int:
    return options.max_in_flight


NSQD = "--nsqd-tcp-address=127.0.0.1:4150"


def test_a_tool_runs_with_its_options_and_warns_of_old_ones(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(ToolOptions, [NSQD, "-max-in-flight", "7"], "tool", work) == 7
    assert capfd.readouterr() == ("", "")
    assert run(ToolOptions, [NSQD, "--reader-opt=snappy"], "tool", work) == 200
    assert "WARNING: --reader-opt is deprecated" in capfd.readouterr().err


def test_log_lines_hold_no_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    def work(_: ToolOptions) -> int:
        log.warning("topic %s", "a\x1b[2J\u009b\tb")
        return 0

    assert run(ToolOptions, [NSQD], "tool", work) == 0
    assert capfd.readouterr().err.endswith(r"WARNING: topic a\x1b[2J\x9b" + "\tb\n")
