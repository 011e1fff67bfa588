"""Flags, durations and config files follow the rules of Go's nsqd."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq.errors import ConfigError
from nsq.flags import (
    FlagExit,
    Parsed,
    check,
    duration,
    flag,
    parse,
    parse_or_exit,
    repeated,
)
from nsq.options import format_duration, parse_duration


def tls_policy(text: str) -> str:
    if text not in ("true", "false", "tcp-https"):
        raise ValueError("want true, false or tcp-https")
    return text


def made_up_host() -> str:
    return "host.example"


@dataclass(frozen=True, kw_only=True)
class Options:
    tcp_address: str = flag("0.0.0.0:4150", "<addr>:<port> to listen on for TCP clients")
    broadcast_address: str = flag(made_up_host, "address registered with nsqlookupd")
    data_path: str = flag("", "path to store messages")
    msg_timeout: float = duration(60.0, "time to wait before requeueing a message")
    sync_timeout: float = duration(0.0, "time between fsyncs")
    mem_queue_size: int = flag(10000, "number of messages to keep in memory")
    max_consumers: int | None = flag(None, "unlimited unless given")
    node_id: int = flag(0, "unique part of message ids", key="id")
    sample: float = flag(1.0, "share of messages")
    lookupd_tcp_addresses: tuple[str, ...] = repeated(
        str, "nsqlookupd TCP address", name="lookupd-tcp-address", key="nsqlookupd_tcp_addresses"
    )
    percentiles: tuple[float, ...] = repeated(float, "percentile", name="percentile", separator=",")
    snappy: bool = flag(True, "enable snappy")
    statsd: bool = flag(False, "enable statsd")
    verbose: bool = flag(False, "", deprecated="use --log-level")
    worker_id: int = flag(0, "worker", deprecated="use --node-id")
    tls_required: str = flag("false", "require TLS", parse=tls_policy, bare="true")
    log_level: str = flag("info", "log level", parse=str.lower)
    n: int = flag(0, "count")
    started_by: str = "not a flag"


def run(*argv: str, version: str | None = "nsqd v1.3.0 (built in Python)") -> Parsed[Options]:
    return parse(Options, argv, prog="nsqd", version=version)


def options(*argv: str) -> Options:
    return run(*argv).options


def exit_of(*argv: str, options_class: type[Any] = Options, **settings: Any) -> FlagExit:
    settings = {"prog": "nsqd", "version": "nsqd v1.3.0"} | settings
    with pytest.raises(FlagExit) as caught:
        parse(options_class, argv, **settings)
    return caught.value


def misuse(*argv: str) -> str:
    """The error of a wrong command line; checks that it is one line on stderr with status 2."""
    end = exit_of(*argv)
    line, _, rest = end.text.partition("\n")
    assert (end.status, end.stream) == (2, "stderr")
    assert rest == "nsqd --help lists the flags\n"
    return line


@pytest.fixture
def config(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "nsqd.cfg"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


class TestDurations:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [
            *[("0", 0.0), ("-0", 0.0), ("+0", 0.0), ("0s", 0.0), ("5s", 5.0), ("+5s", 5.0), ("-5s", -5.0)],
            *[("1m30s", 90.0), ("1h0m0s", 3600.0), ("1.5h", 5400.0), (".5s", 0.5), ("1.s", 1.0)],
            *[("100ms", 0.1), ("25us", 25e-6), ("25\u00b5s", 25e-6), ("25\u03bcs", 25e-6), ("7ns", 7e-9)],
            *[("1.9ns", 1e-9), ("0.000000001s", 1e-9), ("1s1s", 2.0), ("2s1m", 62.0)],
            ("-9223372036854775808ns", -(2**63) / 1e9),
        ],
    )
    def test_durations_are_parsed_as_in_go(self, text: str, seconds: float) -> None:
        assert parse_duration(text) == seconds

    @pytest.mark.parametrize(
        "text",
        [
            *["", "-", "+", "5", "1.5", ".s", "s", "5 s", " 5s", "5s ", "5d", "1S", "--5s", "1m-3s", "abc"],
            *["1m30", "\u0661s", "1e3s", "0x1s", "9223372036854775808ns", "3000000h"],
            *["1" * 5000 + "s", "0." + "1" * 5000 + "s"],
        ],
    )
    def test_an_invalid_duration_is_refused_with_an_example(self, text: str) -> None:
        with pytest.raises(ConfigError, match=r"want a duration such as .* 1m30s"):
            parse_duration(text)

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            *[(0.0, "0s"), (-0.0, "0s"), (1e-10, "0s"), (1e-9, "1ns"), (999e-9, "999ns")],
            *[(1.1e-6, "1.1\u00b5s"), (2.2e-3, "2.2ms"), (0.25, "250ms"), (1.0, "1s"), (3.3, "3.3s")],
            *[(60.0, "1m0s"), (90.0, "1m30s"), (3600.0, "1h0m0s"), (3661.001, "1h1m1.001s")],
            *[(360000.0, "100h0m0s"), (-90.5, "-1m30.5s"), (-5e-9, "-5ns"), (10, "10s")],
        ],
    )
    def test_durations_are_formatted_as_in_go(self, seconds: float, text: str) -> None:
        assert format_duration(seconds) == text

    @given(st.integers(-(2**63), 2**63 - 1))
    @example(2**52 + 1)
    @example(999_999_999)
    @example(-1)
    def test_every_number_of_nanoseconds_survives_the_round_trip(self, nanoseconds: int) -> None:
        seconds = nanoseconds / 10**9
        # The float nearest to the largest int64 is one step beyond it, and so is its text.
        if abs(seconds) < 2**63 / 10**9:
            assert parse_duration(format_duration(seconds)) == seconds

    @given(st.integers(-(2**52), 2**52))
    def test_durations_are_exact_to_the_nanosecond_up_to_52_days(self, nanoseconds: int) -> None:
        seconds = parse_duration(f"{nanoseconds}ns")
        assert parse_duration(format_duration(seconds)) == seconds
        assert parse_duration(f"{nanoseconds - 1}ns") < seconds < parse_duration(f"{nanoseconds + 1}ns")

    @given(st.text() | st.text("+-.0123456789nu\u00b5msh"))
    def test_any_text_is_a_duration_or_a_config_error(self, text: str) -> None:
        try:
            seconds = parse_duration(text)
        except ConfigError:
            return
        assert math.isfinite(seconds)


class TestSyntax:
    def test_no_arguments_give_the_defaults(self) -> None:
        parsed = run()
        assert parsed == Parsed(Options(), (), ())
        assert parsed.options.broadcast_address == "host.example"

    @pytest.mark.parametrize(
        "argv", [("-n", "3"), ("--n", "3"), ("-n=3",), ("--n=3",), ("--n=1", "-n", "3"), ("--n", "3", "--")]
    )
    def test_a_flag_may_have_one_or_two_dashes_and_equals_or_a_space(self, argv: tuple[str, ...]) -> None:
        assert run(*argv) == Parsed(Options(n=3))

    @pytest.mark.parametrize("value", ["-1", "--snappy", "--", "-h", ""])
    def test_a_flag_that_needs_a_value_takes_whatever_comes_next(self, value: str) -> None:
        assert run("--data-path", value) == Parsed(Options(data_path=value))

    @pytest.mark.parametrize(
        ("argv", "rest"),
        [
            (("-n", "1", "orders", "-n", "2"), ("orders", "-n", "2")),
            (("-n", "1", "--", "-n", "2"), ("-n", "2")),
            (("-n", "1", "-", "--version"), ("-", "--version")),
            (("-n", "1", "", "-h"), ("", "-h")),
        ],
    )
    def test_the_first_word_or_two_dashes_end_the_flags(
        self, argv: tuple[str, ...], rest: tuple[str, ...]
    ) -> None:
        assert run(*argv) == Parsed(Options(n=1), rest)

    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            *[([argument], f"bad flag syntax: {argument}") for argument in ("---n=1", "-=1", "--=1", "---")],
            (["--foo=1"], "flag provided but not defined: -foo"),
            (["-foo", "1"], "flag provided but not defined: -foo"),
            *[
                ([f"--{written}=x"], f"flag provided but not defined: -{written} (did you mean --{right}?)")
                for written, right in [
                    ("broadcast-addres", "broadcast-address"),
                    ("Broadcast-Address", "broadcast-address"),
                    ("tcp_address", "tcp-address"),
                ]
            ],
            (["--n"], "flag needs an argument: -n"),
            # The leftmost mistake counts.
            (["-n=x", "-foo"], 'invalid value "x" for flag -n: parse error (want an integer)'),
            (["-n=x", "-h"], 'invalid value "x" for flag -n: parse error (want an integer)'),
            (["-foo", "-n=x"], "flag provided but not defined: -foo"),
        ],
    )
    def test_a_malformed_or_unknown_flag_is_refused(self, argv: list[str], said: str) -> None:
        assert misuse(*argv) == said


#: The texts of a flag and their values, as in Go.
VALUES: dict[str, dict[str, object]] = {
    "n": {
        "0": 0,
        "00": 0,
        "-7": -7,
        "+7": 7,
        "0x1F": 31,
        "-0X10": -16,
        "0b101": 5,
        "0o17": 15,
        "017": 15,
        "0_17": 15,
        "1_000": 1000,
        "0x_ff": 255,
        "9223372036854775807": 2**63 - 1,
    },
    "sample": {"1": 1.0, ".5": 0.5, "5.": 5.0, "-1e3": -1000.0, "+Inf": math.inf},
    "msg-timeout": {"1m30s": 90.0},
    "statsd": dict.fromkeys(["1", "t", "T", "TRUE", "true", "True"], True),
    "snappy": dict.fromkeys(["0", "f", "F", "FALSE", "false", "False"], False),
    "max-consumers": {"5": 5},
    "log-level": {"DEBUG": "debug"},
    "tls-required": {"tcp-https": "tcp-https"},
    "data-path": {"a=b=c": "a=b=c", "": ""},
}
#: Texts that are no values of a flag, by what is said of them.
NO_VALUES: dict[tuple[str, str], list[str]] = {
    ("n", "parse error (want an integer)"): [
        *["", "abc", "1.0", "1e3", " 1", "1 ", "1__0", "_1", "1_", "08", "\u0661", "0x"]
    ],
    ("n", "value out of range"): [str(2**63)],
    ("sample", "parse error (want a number)"): ["", "abc", " 1", "1_0", "\u0661", ".", "1e", "\u0131nf"],
    ("sample", "value out of range"): ["1e999"],
    ("msg-timeout", "parse error (want a duration such as 100ms, 2s or 1m30s)"): ["90", "abc", ""],
    ("statsd", "parse error (want true or false)"): ["yes", "tRUE", ""],
    ("tls-required", "want true, false or tcp-https"): ["maybe"],
    ("percentile", "parse error (want a number)"): ["0.9,x"],
}


class TestValues:
    @pytest.mark.parametrize(
        ("name", "text", "value"),
        [(name, text, value) for name, values in VALUES.items() for text, value in values.items()],
    )
    def test_values_are_parsed_as_in_go(self, name: str, text: str, value: object) -> None:
        assert getattr(options(f"--{name}={text}"), name.replace("-", "_")) == value

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [(name, text, said) for (name, said), texts in NO_VALUES.items() for text in texts],
    )
    def test_an_invalid_value_is_refused(self, name: str, text: str, said: str) -> None:
        start = (
            f'invalid boolean value "{text}" for -{name}: '
            if name in ("statsd", "tls-required")
            else f'invalid value "{text}" for flag -{name}: '
        )
        assert misuse(f"--{name}={text}") == start + said

    def test_a_mistake_is_one_line_of_any_length(self) -> None:
        assert misuse("-n=a\nb") == 'invalid value "a\\nb" for flag -n: parse error (want an integer)'
        assert misuse("-n=" + "9" * 5000).startswith('invalid value "9999')

    def test_a_number_may_be_none(self) -> None:
        assert math.isnan(options("--sample=NaN").sample)

    def test_a_boolean_or_a_flag_that_may_stand_bare_never_takes_the_next_word(self) -> None:
        assert run("--statsd", "false") == Parsed(Options(statsd=True), ("false",))
        assert run("--tls-required", "x") == Parsed(Options(tls_required="true"), ("x",))

    def test_a_bare_text_that_its_own_parser_refuses_is_an_error(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Broken:
            level: int = flag(0, "", parse=int, bare="x")

        end = exit_of("--level", options_class=Broken)
        assert end.status == 2
        assert end.text.startswith("invalid boolean flag level: invalid literal")


class TestRepeated:
    def test_a_repeated_flag_accumulates_in_order(self) -> None:
        parsed = options(
            "--lookupd-tcp-address=b:1", "-lookupd-tcp-address", "a:1", "--lookupd-tcp-address=b:1"
        )
        assert parsed.lookupd_tcp_addresses == ("b:1", "a:1", "b:1")

    def test_a_repeated_flag_is_split_only_where_a_separator_was_asked_for(self) -> None:
        parsed = options("--percentile=0.99,0.5", "--percentile=1", "--lookupd-tcp-address=a,b")
        assert parsed.percentiles == (0.99, 0.5, 1.0)
        assert parsed.lookupd_tcp_addresses == ("a,b",)

    def test_a_repeated_flag_takes_a_parser(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Pairs:
            pair: tuple[list[str], ...] = repeated(lambda text: text.split(","), "")

        assert parse(Pairs, [], prog="p").options.pair == ()
        assert parse(Pairs, ["--pair=x,y"], prog="p").options.pair == (["x", "y"],)


class TestVersionAndHelp:
    @pytest.mark.parametrize(
        "argv",
        [
            ("--version",),
            ("-version",),
            ("-version=true",),
            ("--version", "--config=/no/such/file"),
            ("--config=/no/such/file", "--version"),
            ("--msg-timeout=abc", "--version"),
            ("--version", "--foo"),
            ("--version", "-h"),
            ("--version=false", "--version"),
        ],
    )
    def test_version_wins_over_other_flags(self, argv: tuple[str, ...]) -> None:
        end = exit_of(*argv)
        assert (end.status, end.text, end.stream) == (0, "nsqd v1.3.0\n", "stdout")

    @pytest.mark.parametrize(
        "argv", [("--version=false",), ("--version", "--version=0"), ("--", "--version")]
    )
    def test_version_false_prints_nothing(self, argv: tuple[str, ...]) -> None:
        assert run(*argv).options == Options()

    def test_version_must_be_a_boolean(self) -> None:
        assert misuse("--version=abc").startswith('invalid boolean value "abc" for -version: ')

    def test_a_program_without_a_version_has_no_such_flag(self) -> None:
        end = exit_of("--version", version=None)
        assert end.status == 2
        assert end.text.startswith("flag provided but not defined: -version\n")
        assert "  -version\n" not in end.text

    def test_a_program_without_a_config_file_has_no_such_flag(self) -> None:
        end = exit_of("--config=x", config_flag=False)
        assert end.text.startswith("flag provided but not defined: -config\n")
        assert "  -config " not in end.text

    @pytest.mark.parametrize(
        "argv",
        [
            *[("-h",), ("--h",), ("-help",), ("--help",), ("-n=1", "-h", "-foo")],
            *[("--config=/no/such/file", "-h")],
        ],
    )
    def test_help_prints_the_usage(self, argv: tuple[str, ...]) -> None:
        end = exit_of(*argv)
        assert (end.status, end.stream) == (0, "stdout")
        assert end.text.startswith("Usage of nsqd:\n")

    def test_a_program_may_have_its_own_h(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Hosts:
            h: str = flag("", "host")

        assert parse(Hosts, ["-h", "a"], prog="p").options.h == "a"


class TestUsage:
    def test_the_usage_has_every_flag(self) -> None:
        expected = """\
Usage of nsqd:
  -broadcast-address string
    \taddress registered with nsqlookupd (default "host.example")
  -config string
    \tpath to a TOML config file
  -data-path string
    \tpath to store messages
  -log-level value
    \tlog level (default info)
  -lookupd-tcp-address value
    \tnsqlookupd TCP address
  -max-consumers int
    \tunlimited unless given
  -mem-queue-size int
    \tnumber of messages to keep in memory (default 10000)
  -msg-timeout duration
    \ttime to wait before requeueing a message (default 1m0s)
  -n int
    \tcount
  -node-id int
    \tunique part of message ids
  -percentile value
    \tpercentile
  -sample float
    \tshare of messages (default 1)
  -snappy
    \tenable snappy (default true)
  -statsd
    \tenable statsd
  -sync-timeout duration
    \ttime between fsyncs
  -tcp-address string
    \t<addr>:<port> to listen on for TCP clients (default "0.0.0.0:4150")
  -tls-required
    \trequire TLS (default false)
  -verbose
    \t[deprecated: use --log-level]
  -version
    \tprint version string
  -worker-id int
    \tworker [deprecated: use --node-id]
"""
        assert exit_of("-h").text == expected

    def test_the_usage_has_short_flags_and_long_texts(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Small:
            v: bool = flag(False, "say more\nmuch more")
            topic: tuple[str, ...] = repeated(str, "topics")

        end = exit_of("-h", options_class=Small, prog="p", version=None, config_flag=False)
        assert end.text == ("Usage of p:\n  -topic value\n    \ttopics\n  -v\tsay more\n    \tmuch more\n")


class TestConfigFile:
    @pytest.mark.parametrize(
        ("line", "field", "value"),
        [
            ("msg_timeout = 1500", "msg_timeout", 1.5),
            ('msg_timeout = "1500"', "msg_timeout", 1.5),
            ('msg_timeout = "1500us"', "msg_timeout", 0.0015),
            ("msg_timeout = -1", "msg_timeout", -0.001),
            ('mem_queue_size = "0x10"', "mem_queue_size", 16),
            ("sample = 1", "sample", 1.0),
            ('sample = "0.25"', "sample", 0.25),
            ('statsd = "t"', "statsd", True),
            ('nsqlookupd_tcp_addresses = "a,b"', "lookupd_tcp_addresses", ("a,b",)),
            ("nsqlookupd_tcp_addresses = []", "lookupd_tcp_addresses", ()),
            ('percentiles = "1,0.5"', "percentiles", (1.0, 0.5)),
            ("percentiles = 0.5", "percentiles", (0.5,)),
            ("log_level = 3", "log_level", "3"),
            ('log_level = "WARN"', "log_level", "warn"),
            ("tls_required = true", "tls_required", "true"),
            ("id = 7", "node_id", 7),
            ('percentiles = [1, 0.99, "0.5"]', "percentiles", (1.0, 0.99, 0.5)),
            ('data_path = "\u00fc"', "data_path", "\u00fc"),
        ],
    )
    def test_values_of_a_config_file_are_converted(
        self, config: Any, line: str, field: str, value: object
    ) -> None:
        found = getattr(options("--config", config(line)), field)
        assert found == value
        assert type(found) is type(value)

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("tcp_address = 4150", "tcp_address = 4150: want a string"),
            (
                "msg_timeout = 1.5",
                "msg_timeout = 1.5: want a duration such as 100ms, 2s or 1m30s, or whole milli",
            ),
            ("msg_timeout = true", "msg_timeout = true: want a duration"),
            ('msg_timeout = "abc"', 'msg_timeout = "abc": parse error (want a duration'),
            (f"msg_timeout = {2**62}", f"msg_timeout = {2**62}: value out of range"),
            (f'msg_timeout = "{2**62}"', f'msg_timeout = "{2**62}": value out of range'),
            ("mem_queue_size = true", "mem_queue_size = true: want an integer"),
            ("mem_queue_size = 1.0", "mem_queue_size = 1.0: want an integer"),
            (f"mem_queue_size = {2**63}", f"mem_queue_size = {2**63}: value out of range"),
            ("sample = false", "sample = false: want a number"),
            ('sample = "x"', 'sample = "x": parse error (want a number)'),
            ("snappy = 1", "snappy = 1: want true or false"),
            ('snappy = "maybe"', 'snappy = "maybe": parse error (want true or false)'),
            ("nsqlookupd_tcp_addresses = [1]", "nsqlookupd_tcp_addresses = [1]: want a string"),
            ("tls_required = 5", "tls_required = 5: want true, false or tcp-https"),
            ("log_level = 1979-05-27", 'log_level = "1979-05-27": want a string'),
            ("[log_level]\na = 1", 'log_level = {"a": 1}: want a string'),
        ],
    )
    def test_a_value_of_a_wrong_type_is_refused(self, config: Any, line: str, reason: str) -> None:
        path = config(line)
        end = exit_of("--config", path)
        assert (end.status, end.stream) == (1, "stderr")
        assert end.text.startswith(f"nsqd: config file {path}: {reason}")
        assert end.text.count("\n") == 1

    def test_flag_beats_file_beats_default(self, config: Any) -> None:
        path = config("mem_queue_size = 5\nid = 5\nsnappy = false")
        found = options("--node-id=0", "--config", path, "--snappy")
        assert (found.mem_queue_size, found.node_id, found.snappy, found.n) == (5, 0, True, 0)

    def test_repeated_flags_replace_the_list_of_the_file(self, config: Any) -> None:
        path = config('nsqlookupd_tcp_addresses = ["a:1", "b:1"]\npercentiles = [1.0]')
        found = options("--config", path, "--lookupd-tcp-address=c:1")
        assert found.lookupd_tcp_addresses == ("c:1",)
        assert found.percentiles == (1.0,)

    def test_a_wrong_type_is_an_error_even_under_a_flag(self, config: Any) -> None:
        assert exit_of("--config", config('id = "x"'), "--node-id=1").status == 1

    def test_the_last_config_flag_counts_and_an_empty_one_is_none(self, config: Any) -> None:
        assert options("--config=/no/such/file", "--config", config("id = 5")).node_id == 5
        assert options("--config=").node_id == 0

    def test_a_config_file_that_cannot_be_read_is_refused(self, tmp_path: Path) -> None:
        for path, said in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
            end = exit_of("--config", str(path))
            assert (end.status, end.text) == (1, f"nsqd: cannot read config file {path}: {said}\n")

    @pytest.mark.parametrize("content", [b"id = ", b"id = \xff", b"id = 1\nid = 2", b"\x00"])
    def test_an_invalid_config_file_is_refused(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "nsqd.cfg"
        path.write_bytes(content)
        end = exit_of("--config", str(path))
        assert end.status == 1
        assert end.text.startswith(f"nsqd: config file {path} is not valid TOML: ")
        assert end.text.count("\n") == 1


class TestWarnings:
    @pytest.mark.parametrize(
        ("line", "warning"),
        [
            ("msg_timeuot = 1", 'unknown key "msg_timeuot" is ignored (did you mean "msg_timeout"?)'),
            ("node_id = 1", 'unknown key "node_id" is ignored (did you mean "id"?)'),
            (
                "mem-queue-size = 1",
                'unknown key "mem-queue-size" is ignored (did you mean "mem_queue_size"?)',
            ),
            ("xyzzy = 1", 'unknown key "xyzzy" is ignored'),
            ("[xyzzy]\nid = 1", 'unknown key "xyzzy" is ignored'),
            ("started_by = 'me'", 'unknown key "started_by" is ignored'),
        ],
    )
    def test_unknown_keys_of_a_config_file_are_ignored_with_a_warning(
        self, config: Any, line: str, warning: str
    ) -> None:
        path = config(line)
        assert run("--config", path) == Parsed(Options(), (), (f"{path}: {warning}",))

    def test_deprecated_flags_warn_once_each_and_still_work(self) -> None:
        parsed = run("--worker-id=3", "--verbose", "--worker-id=4")
        assert (parsed.options.worker_id, parsed.options.verbose) == (4, True)
        assert parsed.warnings == (
            "--worker-id is deprecated: use --node-id",
            "--verbose is deprecated: use --log-level",
        )

    def test_deprecated_keys_warn_before_flags(self, config: Any) -> None:
        path = config("verbose = true")
        parsed = run("--worker-id=1", "--config", path)
        assert parsed.options.verbose
        assert parsed.warnings == (
            f"{path}: verbose is deprecated: use --log-level",
            "--worker-id is deprecated: use --node-id",
        )


class TestDeclarations:
    def test_a_flag_declared_twice_is_refused(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Twice:
            a: str = flag("", "")
            b: str = flag("", "", name="a")

        with pytest.raises(TypeError, match="--a is declared twice"):
            parse(Twice, [], prog="p")

    def test_a_type_without_a_parser_is_refused(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Odd:
            where: bytes = flag(b"", "")

        with pytest.raises(TypeError, match=r"Odd\.where: a flag of type <class 'bytes'> needs parse="):
            parse(Odd, [], prog="p")


class TestRanges:
    @dataclass(frozen=True, kw_only=True)
    class Checked:
        max_deflate_level: int = flag(6, "", low=1, high=9)
        pause: float = duration(2.0, "", low=0.5)
        method: str = flag("get", "", choices=("get", "post"))
        experiments: tuple[str, ...] = repeated(str, "", name="enable-experiment", choices=("flying",))

        def __post_init__(self) -> None:
            check(self)

    @pytest.mark.parametrize(
        ("argument", "said"),
        [
            ("--max-deflate-level=10", "--max-deflate-level is 10, but must be 1 to 9"),
            ("--max-deflate-level=0", "--max-deflate-level is 0, but must be 1 to 9"),
            ("--pause=100ms", "--pause is 0.1, but must be at least 0.5 s"),
            ("--method=put", "--method is 'put', but must be one of: get, post"),
            ("--enable-experiment=x", "--enable-experiment is 'x', but must be one of: flying"),
        ],
    )
    def test_a_value_outside_its_range_is_refused(self, argument: str, said: str) -> None:
        end = exit_of(argument, options_class=self.Checked)
        assert (end.status, end.text) == (1, f"nsqd: {said}\n")

    @pytest.mark.parametrize(
        ("argument", "wanted"),
        [
            ("--max-deflate-level=9", {"max_deflate_level": 9}),
            ("--pause=500ms", {"pause": 0.5}),
            ("--method=post", {"method": "post"}),
        ],
    )
    def test_a_value_at_its_limit_is_accepted(self, argument: str, wanted: dict[str, Any]) -> None:
        assert parse(self.Checked, [argument], prog="nsqd").options == self.Checked(**wanted)

    def test_nan_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="is nan"):
            self.Checked(pause=math.nan)


class TestParseOrExit:
    def test_parse_or_exit_reads_the_arguments_of_the_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["/usr/bin/nsqd", "-n", "2"])
        assert parse_or_exit(Options, prog="nsqd").options.n == 2

    @pytest.mark.parametrize(
        ("argument", "status", "out", "err"),
        [
            ("--version", 0, "nsqd v1.3.0\n", ""),
            ("--foo", 2, "", "flag provided but not defined: -foo\nnsqd --help lists the flags\n"),
        ],
    )
    def test_answers_go_to_stdout_and_mistakes_to_stderr(
        self, capsys: pytest.CaptureFixture[str], argument: str, status: int, out: str, err: str
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            parse_or_exit(Options, [argument], prog="nsqd", version="nsqd v1.3.0")
        assert caught.value.code == status
        assert capsys.readouterr() == (out, err)
