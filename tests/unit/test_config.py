from __future__ import annotations

import dataclasses
import inspect
import math
import pickle
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nsq
from nsq import aio, other_clients
from nsq.config import Config, Options
from nsq.errors import ConfigError

NAMES = [field.name for field in dataclasses.fields(Config)]


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Config(**options)
    return str(caught.value)


class TestDefaults:
    def test_defaults_are_those_of_go_nsq(self) -> None:
        config = Config()
        shared = {
            "read_timeout": 60.0,
            "lookupd_poll_interval": 60.0,
            "lookupd_poll_jitter": 0.3,
            "max_requeue_delay": 900.0,
            "default_requeue_delay": 90.0,
            "backoff_strategy": "exponential",
            "max_backoff_duration": 120.0,
            "backoff_multiplier": 1.0,
            "max_attempts": 5,
            "low_rdy_idle_timeout": 10.0,
            "low_rdy_timeout": 30.0,
            "rdy_redistribute_interval": 5.0,
            "heartbeat_interval": 30.0,
            "sample_rate": 0,
            "deflate_level": 6,
            "msg_timeout": 0.0,
        }
        assert {name: getattr(config, name) for name in shared} == shared

    def test_some_defaults_differ_from_those_of_go_nsq(self) -> None:
        config = Config()
        assert (config.dial_timeout, config.write_timeout, config.lookupd_poll_timeout) == (5.0, 5.0, 5.0)
        assert (config.output_buffer_timeout, config.tls_verify) == (0.025, True)
        assert (config.max_in_flight, config.lookupd_authorization) == (None, "https")

    def test_a_client_names_its_host_and_its_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nsq.config._host_name", lambda: "worker-7.example.org")
        config = Config(hostname="given")
        assert (config.client_id, config.hostname) == ("worker-7", "given")
        assert config.user_agent == f"nsq-python/{nsq.__version__}"

    def test_only_verification_and_coalescing_are_on_by_default(self) -> None:
        switches = {name for name in NAMES if getattr(Config(), name) is True}
        assert switches == {"tls_verify", "coalesce"}


class TestImmutability:
    def test_a_config_can_be_pickled(self) -> None:
        config = Config(max_in_flight=9, auth_secret="hunter2", backoff_strategy=math.sqrt)
        assert pickle.loads(pickle.dumps(config)) == config

    def test_equal_options_make_equal_configs(self) -> None:
        assert Config(msg_timeout=60) == Config(msg_timeout=60.0) != Config()
        assert hash(Config(msg_timeout=60)) == hash(Config(msg_timeout=60.0))


class TestTypes:
    @pytest.mark.parametrize(
        ("option", "value", "wanted"),
        [
            ("msg_timeout", "1m30s", "a number of seconds"),
            ("msg_timeout", None, "a number of seconds"),
            ("tls", "yes", "ssl.SSLContext"),
            ("tls_ca_file", 3, "a path"),
            ("client_id", b"x", "a str"),
            ("backoff_strategy", 3, "a function"),
        ],
    )
    def test_a_value_of_a_wrong_type_is_named_with_its_option(
        self, option: str, value: object, wanted: str
    ) -> None:
        text = refusal(**{option: value})
        assert text.startswith(f"{option} is {value!r}, but must be ")
        assert wanted in text


class TestRanges:
    @pytest.mark.parametrize(
        ("option", "low", "high"),
        [
            ("read_timeout", 30.5, 300.0),
            ("write_timeout", 0.1, 300.0),
            ("lookupd_poll_interval", 0.01, 300.0),
            ("lookupd_poll_jitter", 0.0, 1.0),
            ("max_requeue_delay", 0.0, 3600.0),
            ("default_requeue_delay", 0.0, 3600.0),
            ("max_backoff_duration", 0.0, 3600.0),
            ("backoff_multiplier", 0.0, 3600.0),
            ("max_attempts", 0, 65535),
            ("low_rdy_idle_timeout", 1.0, 300.0),
            ("low_rdy_timeout", 1.0, 300.0),
            ("rdy_redistribute_interval", 0.001, 5.0),
            ("sample_rate", 0, 99),
            ("deflate_level", 1, 9),
        ],
    )
    def test_a_range_includes_its_limits(self, option: str, low: float, high: float) -> None:
        for value in (low, high):
            options: dict[str, Any] = {option: value}
            assert getattr(Config(**options), option) == value
        assert option in refusal(**{option: -1})
        assert option in refusal(**{option: high * 1000 if isinstance(high, float) else high + 1})

    def test_the_error_names_option_value_and_range(self) -> None:
        assert refusal(sample_rate=100) == "sample_rate is 100, but must be 0 to 99"
        assert refusal(rate=0.01).startswith(
            "rate is 0.01 messages a second, but must be 0, or at least 1/60"
        )
        assert refusal(msg_timeout=0.5) == "msg_timeout is 0.5, but must be 0, or at least 1 s"
        assert refusal(msg_timeout=math.nan).startswith("msg_timeout is nan, but must be 0, or ")
        assert refusal(max_in_flight=-1) == "max_in_flight is -1, but must be None, or 0 to 2147483647"
        assert len(refusal(backoff_strategy="x" * 1000)) < 200

    def test_special_values_are_accepted(self) -> None:
        for name, value in [
            ("msg_timeout", 0),
            *(("output_buffer_size", size) for size in (-1, None)),
            *(("output_buffer_timeout", seconds) for seconds in (0, -1)),
            *(("max_in_flight", count) for count in (0, None)),
            ("heartbeat_interval", -1),
        ]:
            options: dict[str, Any] = {name: value}
            assert getattr(Config(**options), name) == value

    @pytest.mark.parametrize("interval", [0, -2, 0.5, 59000])
    def test_heartbeats_come_at_most_once_a_second(self, interval: float) -> None:
        assert "heartbeat_interval" in refusal(heartbeat_interval=interval)

    def test_a_choice_must_be_one_of_the_list(self) -> None:
        assert Config(backoff_strategy="full_jitter").backoff_strategy == "full_jitter"
        assert Config(backoff_strategy=math.sqrt).backoff_strategy is math.sqrt
        assert refusal(backoff_strategy="linear").endswith("must be one of: exponential, full_jitter")
        assert "TLSv1.2, TLSv1.3" in refusal(tls=True, tls_min_version="TLSv1.1")


class TestCombinations:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"read_timeout": 30, "heartbeat_interval": 30}, "less than read_timeout, which is 30 s"),
            ({"reconnect_initial": 2, "reconnect_max": 1}, "reconnect_max"),
            ({"snappy": True, "deflate": True}, "snappy and deflate"),
            ({"tls": True, "tls_key_file": "key.pem"}, "give tls_cert_file too"),
            ({"low_latency": True, "output_buffer_size": 4096}, "low_latency"),
            ({"tls_server_name": "nsqd.example"}, "add tls=True"),
        ],
    )
    def test_options_that_contradict_each_other_are_refused(self, options: dict[str, Any], said: str) -> None:
        assert said in refusal(**options)

    @pytest.mark.parametrize(
        "options",
        [
            {"tls_ca_file": "ca.pem"},
            {"tls_cert_file": "cert.pem"},
            {"tls_min_version": "TLSv1.3"},
            {"tls_verify": False},
        ],
    )
    def test_tls_options_need_tls_true(self, options: dict[str, Any]) -> None:
        name = next(iter(options))
        assert refusal(**options) == f"{name} is given but tls is not: add tls=True"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        assert f"{name} has no effect" in refusal(tls=context, **options)
        assert getattr(Config(tls=True, **options), name) == options[name]

    def test_options_that_go_together_are_accepted(self) -> None:
        assert Config(read_timeout=30, heartbeat_interval=29.9).read_timeout == 30
        assert Config(low_latency=True).output_buffer_size is None
        assert Config(low_latency=True, output_buffer_size=-1).low_latency
        assert Config.of(Config(low_latency=True), {"low_latency": False}) == Config()
        for tls in (True, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)):
            assert Config(tls=tls, tls_server_name="nsqd.example").tls_server_name == "nsqd.example"


class TestForEditors:
    def test_the_keywords_of_clients_have_the_types_of_the_options(self) -> None:
        assert Options.__annotations__.keys() == set(NAMES)
        keywords = {name: kind.__forward_arg__ for name, kind in Options.__annotations__.items()}
        assert keywords == {field.name: field.type for field in dataclasses.fields(Config)}

    @pytest.mark.parametrize("client", [nsq.Consumer, nsq.Producer, aio.Consumer, aio.Producer])
    def test_a_clients_signature_shows_every_option_with_its_default(self, client: type) -> None:
        shown = inspect.signature(client).parameters
        assert {name: shown[name].default for name in NAMES} == dict(vars(Config()))
        assert "options" not in shown
        assert "nsqlookupd" in shown
        assert ("threads" in shown) is (client is nsq.Consumer)

    def test_a_subclass_shows_its_own_parameters(self) -> None:
        class Billing(nsq.Consumer):
            def __init__(self, max_attempts: int = 9) -> None:
                super().__init__("orders", "billing", nsqd="nsqd-a:4150", max_attempts=max_attempts)

        assert [*inspect.signature(Billing).parameters] == ["max_attempts"]


def test_a_path_of_any_kind_becomes_a_str() -> None:
    assert [Config(tls=True, tls_ca_file=each).tls_ca_file for each in (Path("ca"), b"ca")] == ["ca", "ca"]  # type: ignore[arg-type]


class TestSecrets:
    def test_a_secret_is_not_shown(self) -> None:
        config = Config(auth_secret="hunter2", max_in_flight=3)
        assert repr(config) == str(config) == "Config(auth_secret=***, max_in_flight=3)"

    def test_a_secret_is_not_in_errors(self) -> None:
        texts = [refusal(auth_secret=b"hunter2"), refusal(auth_secret="hunter2\n")]
        assert not any("hunter2" in text for text in texts)
        assert texts[0] == "auth_secret is a secret bytes, but must be a str"
        assert "not stripped" in texts[1]

    def test_the_repr_makes_an_equal_config(self) -> None:
        config = Config(msg_timeout=90, tls=True, tls_ca_file="ca.pem", backoff_strategy="full_jitter")
        assert eval(repr(config), {"Config": Config}) == config


#: What other clients call their options.
CLIENTS = {
    "go-nsq": """
        dial_timeout read_timeout write_timeout lookupd_poll_interval lookupd_poll_jitter
        lookupd_poll_timeout max_requeue_delay default_requeue_delay backoff_strategy max_backoff_duration
        backoff_multiplier max_attempts low_rdy_idle_timeout low_rdy_timeout rdy_redistribute_interval
        client_id hostname user_agent topology_region topology_zone heartbeat_interval sample_rate
        tls_min_version deflate deflate_level snappy output_buffer_size output_buffer_timeout
        max_in_flight msg_timeout max_msg_size auth_secret local_addr tls_v1 tls_config tls_root_ca_file
        tls_insecure_skip_verify tls_cert tls_key skip_lookupd_authorization
    """,
    "pynsq's Reader": """
        max_in_flight lookupd_poll_interval low_rdy_idle_timeout max_backoff_duration lookupd_poll_jitter
        heartbeat_interval snappy deflate deflate_level user_agent output_buffer_size
        output_buffer_timeout sample_rate auth_secret msg_timeout hostname message_handler name
        nsqd_tcp_addresses lookupd_http_addresses max_tries lookupd_connect_timeout
        lookupd_request_timeout timeout requeue_delay tls_v1 tls_options io_loop
    """,
    "pynsq's Writer": """
        reconnect_interval name
    """,
    "gnsq's Consumer": """
        lookupd_poll_interval lookupd_poll_jitter max_backoff_duration nsqd_tcp_addresses
        lookupd_http_addresses name message_handler max_tries requeue_delay low_ready_idle_timeout
        backoff_on_requeue max_concurrency async
    """,
    "gnsq's NsqdTCPClient": """
        client_id user_agent address port timeout tls_v1 tls_options
    """,
    "nsq-py": """
        connect_timeout short_id feature_negotiation
    """,
    "ansq": """
        connection_options features on_message on_exception on_close auto_reconnect message_queue loop
        debug logger
    """,
    "asyncnsq": """
        log_level queue auto_fin auto_requeue concurrency tls_v1 host port
    """,
    "nsqjs": """
        lookupdHTTPAddresses nsqdTCPAddresses messageTimeout idleTimeout requeueDelay maxBackoffDuration
        tlsVerification
    """,
}


class TestTheOptionsOfOtherClients:
    @pytest.mark.parametrize(
        "make",
        [
            Config,
            lambda **options: nsq.Producer("127.0.0.1:4150", **options),
            lambda **options: nsq.Consumer("orders", "billing", nsqd="127.0.0.1:4150", **options),
            lambda **options: Config.of(Config(), options),
        ],
        ids=["Config", "Producer", "Consumer", "Config.of"],
    )
    def test_an_option_of_another_client_is_answered_with_ours(self, make: Callable[..., object]) -> None:
        for name in " ".join(CLIENTS.values()).split():
            if name in NAMES:
                continue
            with pytest.raises(ConfigError) as caught:
                make(**{name: 1})
            assert str(caught.value).startswith(f"there is no option {name!r}; ")

    def test_the_error_about_another_clients_option_says_what_to_use(self) -> None:
        assert refusal(tls_v1=True) == "there is no option 'tls_v1'; it is called tls=True here"
        assert refusal(lookupd_http_addresses=["127.0.0.1:4161"]) == (
            "there is no option 'lookupd_http_addresses'; it is nsqlookupd= of Consumer and Producer here"
        )

    def test_hints_name_existing_options(self) -> None:
        for name, text in other_clients.OPTIONS.items():
            assert name not in NAMES
            words = set(re.findall(r"\w+", text))
            assert words & set(NAMES)
            assert {word for word in words if "_" in word} <= set(NAMES)

    def test_our_options_are_not_taken_for_those_of_other_clients(self) -> None:
        assert not set(NAMES) & {*other_clients.OPTIONS, *other_clients.ARGUMENTS}

    def test_arguments_of_a_client_are_not_options(self) -> None:
        for taker, missing in ((nsq.Producer, "threads"), (nsq.Consumer, "on_acknowledged")):
            given = ("orders", "billing") if taker is nsq.Consumer else ("127.0.0.1:4150",)
            with pytest.raises(ConfigError, match=f"no option '{missing}'; it is an argument of "):
                taker(*given, **{missing: 1})
        parameters = {
            *inspect.signature(nsq.Consumer).parameters,
            *inspect.signature(nsq.Producer).parameters,
        }
        ours = {
            name for name, text in other_clients.ARGUMENTS.items() if text.startswith("it is an argument")
        }
        assert ours <= parameters


class TestUnknownOptions:
    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("max_inflight", "did you mean max_in_flight?"),
            ("maxInFlight", "did you mean max_in_flight?"),
            ("local_adress", "did you mean local_address?"),
            ("tls_certfile", "did you mean tls_cert_file?"),
            ("zzz", ""),
        ],
    )
    def test_the_nearest_option_is_named(self, name: str, hint: str) -> None:
        said = f"there is no option {name!r}" + (f"; {hint}" if hint else "")
        assert refusal(**{name: "hunter2"}) == said

    def test_a_change_of_a_config_refuses_unknown_options_too(self) -> None:
        with pytest.raises(ConfigError, match="did you mean max_in_flight"):
            Config.of(Config(), {"max_inflight": 1})


class TestOf:
    def test_options_change_a_copy_which_is_checked(self) -> None:
        base = Config(max_attempts=7, snappy=True)
        assert Config.of(base, {"max_attempts": 9}) == Config(max_attempts=9, snappy=True)
        assert base.max_attempts == 7
        assert Config.of(base, {}) is base
        assert Config.of(None, {"max_attempts": 7}) == Config(max_attempts=7)
        with pytest.raises(ConfigError, match="snappy and deflate"):
            Config.of(base, {"deflate": True})

    def test_a_value_that_is_no_config_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="config is a dict"):
            Config.of({"max_attempts": 1}, {})  # type: ignore[arg-type]


class TestFromStrings:
    def test_values_of_every_kind_are_read_from_text(self) -> None:
        texts = {
            "max_in_flight": "200",
            "max-attempts": "0",
            "msg-timeout": "1m30s",
            "lookupd_poll_jitter": "0.5",
            "tls": "T",
            "tls_verify": "false",
            "backoff_strategy": "full_jitter",
            "output_buffer_size": "-1",
            "client_id": "a b",
        }
        assert Config.from_strings(texts) == Config(
            max_in_flight=200,
            max_attempts=0,
            msg_timeout=90.0,
            lookupd_poll_jitter=0.5,
            tls=True,
            tls_verify=False,
            backoff_strategy="full_jitter",
            output_buffer_size=-1,
            client_id="a b",
        )

    @pytest.mark.parametrize(
        ("texts", "said"),
        [
            ({"msg_timeout": "60"}, "^msg_timeout is '60': "),
            ({"msg_timeout": "60 s"}, "^msg_timeout is '60 s': "),
            ({"max_in_flight": "many"}, "^max_in_flight is 'many': "),
            ({"tls": "yes"}, "^tls is 'yes': "),
            ({"lookupd_poll_jitter": ""}, "^lookupd_poll_jitter is '': "),
            ({"sample-rate": "100"}, "sample_rate is 100, but must be 0 to 99"),
            ({"max-inflight": "1"}, "did you mean max_in_flight"),
            ({"max-in-flight": "1", "max_in_flight": "1"}, "given twice"),
            ({"max_in_flight": 3}, "max_in_flight is not text"),
        ],
    )
    def test_a_wrong_text_is_named(self, texts: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            Config.from_strings(texts)

    @given(st.sampled_from(NAMES), st.text(max_size=20))
    def test_any_text_is_read_or_refused(self, name: str, text: str) -> None:
        try:
            config = Config.from_strings({name: text})
        except ConfigError:
            return  # any other exception fails the test
        assert dataclasses.replace(config) == config


class TestFromEnviron:
    def test_options_are_read_from_a_given_environment(self) -> None:
        environ = {"NSQ_MAX_IN_FLIGHT": "200", "NSQ_MSG_TIMEOUT": "1m", "MAX_ATTEMPTS": "3", "HOME": "/"}
        assert Config.from_environ(environ=environ) == Config(max_in_flight=200, msg_timeout=60.0)

    def test_options_are_read_from_the_environment_of_the_process(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("APP_NSQ_MAX_ATTEMPTS", "3")
        assert Config.from_environ("APP_NSQ_").max_attempts == 3

    def test_config_itself_reads_no_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NSQ_MAX_ATTEMPTS", "3")
        assert Config().max_attempts == 5

    def test_variables_of_other_programs_are_ignored(self) -> None:
        # What Kubernetes sets for services called nsq and nsq-tls, and our own test plugin's.
        environ = {
            "NSQ_SERVICE_HOST": "10.0.0.1",
            "NSQ_PORT": "tcp://10.0.0.1:4150",
            "NSQ_PORT_4150_TCP_PROTO": "tcp",
            "NSQ_TLS_SERVICE_PORT": "4150",
            "NSQ_BIN_DIR": "/opt",
            "NSQ_HOST": "queue.example",
            "NSQ_TOPIC": "orders",
            "NSQ_LOOKUPD_HTTP_ADDRESSES": "127.0.0.1:4161",
        }
        assert Config.from_environ(environ=environ) == Config()

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("NSQ_MAX_INFLIGHT", "did you mean max_in_flight"),
            ("NSQ_TLS_V1", "called tls=True here"),
            ("NSQ_MAX_ATTEMPTS", "max_attempts is 'x'"),
        ],
    )
    def test_a_misspelt_variable_or_a_wrong_value_is_an_error(self, name: str, said: str) -> None:
        with pytest.raises(ConfigError, match=rf"NSQ_\*: .*{said}"):
            Config.from_environ(environ={name: "x"})


class TestDescribe:
    def test_every_option_has_its_line(self) -> None:
        table = Config.describe()
        assert [line.name for line in table] == NAMES
        assert all(len(line.help) > 15 and line.help.endswith(".") and line.default for line in table)

    def test_describe_shows_default_and_range(self) -> None:
        table = {line.name: line for line in Config.describe()}
        assert table["max_attempts"][:3] == ("max_attempts", "5", "0 to 65535")
        assert table["msg_timeout"][:3] == ("msg_timeout", "0", "0, or at least 1 s")
        assert table["default_requeue_delay"][:3] == ("default_requeue_delay", "90 s", "0 to 3600 s")
        assert table["tls_min_version"][:3] == ("tls_min_version", "TLSv1.2", "TLSv1.2, TLSv1.3")
        assert table["output_buffer_size"].range == "None, or -1, or at least 64"
        assert table["client_id"][:3] == ("client_id", "short host name", "")
        assert table["tls_ca_file"][1:3] == ("None", "")
