"""The program ``nsq`` where a transcript does not do: signals, TLS, shells, output that cannot be written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import ApiRefused
from nsq.http.nsqd import NsqdApi
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from nsq.tools.front_door import COMMANDS, filled_in, main
from tests.golden.recordings import others_are_judged
from tests.integration.authority import Authority
from tests.integration.consuming import channel_of, create, numbered, publish, until

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = main(words)
        said = capfd.readouterr()
        return status, said.out, said.err

    return run


def test_commands_without_an_address_find_an_nsqlookupd_or_else_an_nsqd(
    nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsqds = [nsqd_factory(lookupd=[nsqlookupd]) for _ in range(2)]
    lookupd, nsqd = nsqlookupd.http_address, nsqds[0].http_address
    for each in nsqds:
        create(each)
    until("registered", lambda: len(nsqlookupd.get("/lookup?topic=orders").json()["producers"]) == 2)

    def topics() -> Any:
        return json.loads(run("topics", "--json")[1])

    monkeypatch.setattr("nsq.tools.cluster._USUAL", (lookupd, "127.0.0.1:1"))
    assert topics()[0]["nsqds"] == 2
    monkeypatch.setattr("nsq.tools.cluster._USUAL", ("127.0.0.1:1", nsqd))
    assert topics()[0]["nsqds"] == 1
    peek = [] if others_are_judged() else [["peek", "orders"]]  # Go's nsqd has none
    for words in (["pub", "orders", "x"], ["channels", "orders"], *peek, ["doctor"]):
        assert run(*words)[0] == 0, words
    assert run("create", "returns/audit") == (0, f"create returns/audit: nsqd {nsqd}: ok\n", "")
    assert run("channels", "returns", "--names")[1] == "audit\n"
    monkeypatch.setattr("nsq.tools.cluster._USUAL", ("127.0.0.1:1", "127.0.0.1:2"))
    for words in (["topics"], ["doctor"], ["tail", "orders"]):
        status, out, error = run(*words)
        assert status == 1
        for said in ("--address=HOST:PORT", "NSQ_ADDRESS", "`nsq up`", "127.0.0.1:1", "127.0.0.1:2"):
            assert said in out + error


def test_an_interrupted_redrive_loses_nothing(nsqd_factory: Factory[Nsqd]) -> None:
    nsqd = nsqd_factory(msg_timeout="3s")
    create(nsqd, "dead", "redrive")
    create(nsqd, "orders")
    publish(nsqd, numbered(2000), "dead")
    command = [sys.executable, "-m", "nsq", "redrive", "dead", "orders"]
    command.append(f"--nsqd-http-address={nsqd.http_address}")

    def left() -> int:
        counts = channel_of(nsqd, "dead", "redrive")
        count: int = counts["depth"] + counts["in_flight_count"] + counts["deferred_count"]
        return count

    def arrived() -> int:
        # Of the topic: Go's nsqd hands messages to the channel later.
        count: int = nsqd.get("/stats?format=json&topic=orders").json()["topics"][0]["message_count"]
        return count

    until("in the channel", lambda: left() == 2000)
    for number, at in ((signal.SIGINT, 1500), (signal.SIGKILL, 1000), (signal.SIGTERM, 500)):
        with subprocess.Popen([*command, "--rate=1000"], stdout=subprocess.DEVNULL) as process:
            until("on its way", lambda at=at: left() < at)  # type: ignore[misc]
            process.send_signal(number)
            assert process.wait(60) == (1 if number != signal.SIGKILL else -number)
        assert left() > 0
        assert left() + arrived() >= 2000
        # Go's nsqd keeps what a killed client had in flight until the timeout.
        until("waiting", lambda: not channel_of(nsqd, "dead", "redrive")["in_flight_count"])
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert left() == 0
    assert arrived() >= 2000


@pytest.mark.parametrize(
    ("method", "words", "said"),
    [("peek", ["peek", "orders"], "not one of ours"), ("create_channel", ["bench"], "")],
)
def test_an_nsqd_that_lacks_what_a_command_needs(
    nsqd: Nsqd, run: Run, monkeypatch: pytest.MonkeyPatch, method: str, words: list[str], said: str
) -> None:
    def refused(*_: object, **__: object) -> object:
        raise ApiRefused("404 NOT_FOUND", 404, "NOT_FOUND")

    create(nsqd)
    monkeypatch.setattr(NsqdApi, method, refused)
    monkeypatch.setenv("NSQ_ADDRESS", nsqd.http_address)
    status, _, error = run(*words)
    assert (status, said in error) == (1, True)
    assert run("topics", "--names")[1] == "orders\n"  # and no topic of the benchmark


def test_the_doctor_causes_no_error_in_the_log_of_a_healthy_nsqd(nsqd: Nsqd, run: Run) -> None:
    status, out, _ = run("doctor", f"--address={nsqd.http_address}")
    assert (status, out.count("(TCP): answers")) == (0, 1)
    lines = nsqd.log.splitlines()
    assert lines
    # Go's nsqd logs such an error for the connection by which the fixture sees that it listens.
    of_fixture = "failed to read protocol version - EOF"
    errors = [line for line in lines if "ERROR" in line or "E_" in line]
    assert [line for line in errors if of_fixture not in line] == []


def test_the_doctor_finds_a_wrong_port_and_missing_tls(
    nsqd_factory: Factory[Nsqd], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    nsqd = nsqd_factory(**authority.server_options, tls_required=True)
    http = f"--nsqd-http-address={nsqd.http_address}"
    trusting = [http, f"--http-client-tls-root-ca-file={authority.certificate}"]
    tls = ["--producer-opt=tls_v1", f"--producer-opt=tls_root_ca_file,{authority.certificate}"]
    for flags, status, said in (
        ([http], 1, "Give the authority that signed it: --http-client-tls-root-ca-file"),
        (trusting, 1, "it requires TLS\n         Give TLS options: --producer-opt=tls_v1"),
        ([*trusting, "--producer-opt=tls_v1"], 1, "Give TLS options"),
        ([*trusting, *tls], 0, "(TCP): answers"),
        ([f"--nsqd-http-address={nsqd.tcp_address}"], 1, "Give its HTTP address."),
    ):
        ended, out, error = run("doctor", *flags)
        assert (ended, error) == (status, "")
        assert said in out
    monkeypatch.setattr("nsq.tools.doctor._CLOCK_TOLERANCE", -1.0)
    https = f"--nsqd-http-address=https://{nsqd.https_address}"
    assert "its clock is" in run("doctor", https, *trusting[1:], *tls)[1]


def test_programs_of_gos_get_a_topic_and_an_address(
    nsqd: Nsqd, nsqlookupd: Nsqlookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail, stat = COMMANDS["tail"], COMMANDS["stat"]
    lookupd = f"--lookupd-http-address={nsqlookupd.http_address}"
    monkeypatch.setenv("NSQ_ADDRESS", nsqlookupd.http_address)
    for words in (["t/c", "-n", "3"], ["-n", "3", "t/c"]):
        assert filled_in(tail, words) == ["--topic=t", "--channel=c", lookupd, "-n", "3"]
    assert filled_in(tail, ["--", "t/-c"]) == ["--topic=t", "--channel=-c", lookupd]
    assert filled_in(tail, ["--meta", "t", "u"]) == ["--topic=t", "--topic=u", lookupd, "--meta"]
    assert filled_in(tail, ["--nsqd-tcp-address", "a:2", "t"]) == ["--topic=t", "--nsqd-tcp-address", "a:2"]
    tcp, http = f"--nsqd-tcp-address={nsqd.tcp_address}", f"--nsqd-http-address={nsqd.http_address}"
    assert filled_in(tail, ["t", "--address", nsqd.http_address]) == ["--topic=t", tcp]
    assert filled_in(stat, ["t/c", f"--address={nsqd.http_address}"]) == ["--topic=t", "--channel=c", http]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(run: Run, shell: str) -> None:
    status, script, _ = run("completion", shell)
    assert status == 0
    assert all(name in script for name in COMMANDS)
    assert "skip-empty-files" in script


SHELLS = {
    "bash": "bash --norc --noprofile",
    "zsh": "zsh -f",
    "fish": "fish --no-config",
}


def test_completion_offers_topics_and_channels_with_valid_names(
    nsqd: Nsqd, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQ_ADDRESS", nsqd.http_address)
    create(nsqd, "orders", "billing")
    create(nsqd, "orders", "audit#ephemeral")
    create(nsqd, "returns")
    assert run("completion", "names", "o") == (0, "orders\nreturns\n", "")
    assert run("completion", "names", "orders/b")[1] == "orders/audit#ephemeral\norders/billing\n"
    stats = NsqdApi.stats

    def hostile(api: NsqdApi, *args: Any, **more: Any) -> Any:
        given = stats(api, *args, **more)
        return {**given, "topics": [{**given["topics"][0], "topic_name": "$(date)"}]}

    monkeypatch.setattr(NsqdApi, "stats", hostile)
    assert run("completion", "names", "") == (0, "", "")
    monkeypatch.setenv("NSQ_ADDRESS", "127.0.0.1:1")
    assert run("completion", "names", "o") == (0, "", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_flags_names_and_files(
    nsqd: Nsqd, run: Run, shell: str, tmp_path: Path, tmux: Callable[..., str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"not run: there is no {shell}")
    (tmp_path / "script").write_text(run("completion", shell)[1])
    (tmp_path / "archive").mkdir()
    create(nsqd, "orders", "billing")
    programs = Path(sys.executable).parent
    setting = f"env NSQ_ADDRESS={nsqd.http_address} PATH={programs}:{os.environ['PATH']} {SHELLS[shell]}"
    tmux("new-session", "-d", "-x", "150", "-y", "30", "-c", str(tmp_path), setting)

    def shown(text: str) -> Callable[[], bool]:
        return lambda: text in tmux("capture-pane", "-p", "-J")

    if shell == "zsh":
        tmux("send-keys", "autoload -Uz compinit && compinit -D", "Enter")
    tmux("send-keys", "source ./script && echo is $((40 + 2))" if shell != "fish" else
         "source ./script; and echo is (math 40 + 2)", "Enter")  # fmt: skip
    until("read", shown("is 42"))
    for typed, completed in (
        ("nsq del", "nsq delete "),
        ("nsq redrive --dr", "nsq redrive --dry-run"),
        ("nsq completion zs", "nsq completion zsh"),
        ("nsq pause ord", "nsq pause orders"),
        ("nsq tail orders/b", "nsq tail orders/billing"),
        ("nsq to-file --output-dir=arch", "nsq to-file --output-dir=archive/"),
    ):
        tmux("send-keys", typed, "Tab")
        until(completed, shown(completed))
        tmux("send-keys", "C-u")  # C-c would discard what is typed next


UNWRITABLE = {"a full disk": (1, "No space left"), "a pipe without a reader": (128 + signal.SIGPIPE, "")}


@pytest.mark.parametrize("output", UNWRITABLE)
@pytest.mark.parametrize(
    "words",
    [
        ["-m", "nsq", "--help"],
        ["-m", "nsq", "top", "--help"],
        ["-m", "nsq", "completion", "bash"],
        ["-m", "nsq", "topics", "NSQD"],
        ["-m", "nsq", "doctor", "NSQD"],
        ["-m", "nsq.tools.nsq_stat", "--topic=orders", "--channel=billing", "NSQD"],
    ],
    ids=lambda words: words[2] if words[1] == "nsq" else words[1],
)
def test_output_that_cannot_be_written(nsqd: Nsqd, words: list[str], output: str) -> None:
    create(nsqd)
    given = [f"--nsqd-http-address={nsqd.http_address}" if word == "NSQD" else word for word in words]
    reader, pipe = os.pipe()
    os.close(reader)
    with open("/dev/full", "wb") as full:
        out = full.fileno() if output == "a full disk" else pipe
        done = subprocess.run(
            [sys.executable, *given], stdout=out, stderr=subprocess.PIPE, text=True, check=False
        )
    os.close(pipe)
    status, said = UNWRITABLE[output]
    assert done.returncode == status
    assert done.stderr.count("\n") == bool(said)
    assert said in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_nsq_runs_without_standard_streams(nsqd: Nsqd, closed: str) -> None:
    create(nsqd)
    to_nsq = f"{sys.executable} -m nsq.tools.to_nsq --topic=orders --nsqd-tcp-address={nsqd.tcp_address}"
    done = subprocess.run(f"{to_nsq} {closed}", shell=True, input=b"", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"Traceback" not in done.stderr
