"""The command line: what it means, and that looking at it loads no Spark."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nsq.spark.cli import arguments, commands


def parse(*words: str) -> Any:
    return arguments.parser(commands).parse_args(words)


def test_an_archive_needs_little() -> None:
    found = parse("archive", "orders", "--to", "/data/orders", "--nsqd", "10.0.0.2:4150")
    assert found.run is commands.archive
    assert (found.topic, found.channel, found.to, found.nsqd) == (
        "orders", "archive", "/data/orders", ["10.0.0.2:4150"]
    )  # fmt: skip
    assert (found.follow, found.master, found.option, found.body) == (False, None, [], "binary")


def test_addresses_repeat_and_have_the_names_of_the_other_tools() -> None:
    found = parse(
        "metrics", "orders", "--nsqd-tcp-address=a:4150", "--nsqd", "b:4150", "--lookupd-http-address=c:4161"
    )
    assert (found.nsqd, found.lookupd) == (["a:4150", "b:4150"], ["c:4161"])


def test_options_and_settings_are_pairs() -> None:
    found = parse(
        "metrics", "orders", "-o", "maxInFlight=5000", "--conf", "spark.driver.memory=4g", "--conf", "x=a=b"
    )
    assert dict(found.option) == {"maxInFlight": "5000"}
    assert dict(found.conf) == {"spark.driver.memory": "4g", "x": "a=b"}


def test_durations() -> None:
    assert parse("archive", "orders", "--to", "x", "--every", "1m30s").every == 90.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["archive", "orders"], "--to"),
        (["archive", "orders", "--to", "x", "--every", "90"], "want a duration"),
        (["metrics", "orders", "-o", "maxInFlight"], "is not NAME=VALUE"),
        (["metrics", "orders", "--conf", "=4g"], "is not NAME=VALUE"),
        (["wal"], "command"),
        (["replay", "/data/orders"], "--topic"),
        (["archives"], "invalid choice"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_every_command_has_a_function_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    verbs = ["archive", "compact", "metrics", "replay", "fanout", "receive", "doctor"]
    for words in [*([verb] for verb in verbs), *(["wal", verb] for verb in ("ls", "verify", "gc"))]:
        with pytest.raises(SystemExit) as caught:
            parse(*words, "--help")
        assert caught.value.code == 0
        assert f"nsq-spark {' '.join(words)}" in capsys.readouterr().out


def test_a_parser_takes_any_commands() -> None:
    names = [*(name for name in dir(arguments.Commands) if not name.startswith("_"))]
    other: Any = SimpleNamespace(**dict.fromkeys(names, lambda options: 7))
    assert arguments.parser(other).parse_args(["doctor"]).run(None) == 7


def test_version_and_help_load_neither_spark_nor_arrow() -> None:
    code = (
        "import sys\nfrom nsq.spark.cli.main import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
