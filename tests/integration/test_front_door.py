"""The program ``nsq``: inspecting, changing and repairing a cluster from a shell."""

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
from tests.integration.judged import only_ours

Run = Callable[..., tuple[int, str, str]]


class Cluster:
    def __init__(self, lookupd: Nsqlookupd, nsqds: list[Nsqd], run: Run) -> None:
        self.lookupd = lookupd
        self.nsqds = nsqds
        self._run = run

    def __call__(self, *words: str) -> tuple[int, str, str]:
        return self._run(*words, f"--lookupd-http-address={self.lookupd.http_address}")

    def registered(self, topic: str = "orders") -> None:
        def count() -> int:
            reply = self.lookupd.get(f"/lookup?topic={topic}")
            return len(reply.json()["producers"]) if reply.status == 200 else 0

        until("registered", lambda: count() == len(self.nsqds))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = main(words)
        said = capfd.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def cluster(nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd], run: Run) -> Cluster:
    nsqds = [nsqd_factory(lookupd=[nsqlookupd]) for _ in range(2)]
    for nsqd in nsqds:
        create(nsqd)
    made = Cluster(nsqlookupd, nsqds, run)
    made.registered()
    return made


def test_messages_are_published_to_a_nsqd_that_answers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cluster("pub", "orders", "one", "two")[0] == 0
    assert cluster("pub", "orders", "later", "--defer=1h")[0] == 0
    (tmp_path / "in").write_bytes(b"three\n\nfour")
    for flags, said in (
        ([], (0, "", "published 2 messages to orders\n")),
        (["--defer=1h"], (0, "", "published 2 messages to orders\n")),
        (["--json"], (0, '{"topic": "orders", "published": 2}\n', "")),
    ):
        with (tmp_path / "in").open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert cluster("pub", "orders", *flags) == said
    counted = [channel_of(nsqd) for nsqd in cluster.nsqds]
    assert sum(each["depth"] for each in counted) == 6
    assert sum(each["deferred_count"] for each in counted) == 3


@pytest.mark.parametrize("words", [("pub", "orders", "one"), ("bench",)])
def test_pub_says_why_there_is_no_nsqd_to_publish_to(
    nsqlookupd: Nsqlookupd, run: Run, words: tuple[str, ...]
) -> None:
    for flag, said in (
        (f"--lookupd-http-address={nsqlookupd.http_address}", "no nsqd is registered with nsqlookupd "),
        (f"--lookupd-http-address={nsqlookupd.tcp_address}", "this is a TCP port of NSQ"),
        ("--nsqd-http-address=127.0.0.1:1", "127.0.0.1:1/info cannot be reached: Connection refused"),
    ):
        status, out, err = run(*words, flag)
        assert (status, out) == (1, "")
        assert said in err


def test_commands_without_an_address_find_an_nsqlookupd_or_else_an_nsqd(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookupd, nsqd = cluster.lookupd.http_address, cluster.nsqds[0].http_address

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


def test_address_and_its_variable_accept_nsqlookupds_or_nsqds(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookupd, nsqd = cluster.lookupd.http_address, cluster.nsqds[0].http_address

    def nsqds(*flags: str) -> Any:
        return json.loads(run("topics", "--json", *flags)[1])[0]["nsqds"]

    assert nsqds(f"--address={lookupd}") == 2
    assert nsqds(f"--address={nsqd}") == 1
    monkeypatch.setenv("NSQ_ADDRESS", f" {nsqd}, {cluster.nsqds[1].http_address}")
    assert nsqds() == 2
    assert nsqds(f"--address={nsqd}") == 1
    gone = "127.0.0.1:1"
    for words, said in (
        ([f"--address={nsqd}", f"--address={lookupd}"], "--address names nsqlookupds and nsqds"),
        ([f"--address={nsqd}", f"--nsqd-http-address={nsqd}"], "give --address or --nsqd-http-address,"),
        ([f"--address={gone}"], f"--address: http://{gone}/info cannot be reached"),
        ([f"--nsqd-http-address={gone}"], f"--nsqd-http-address: http://{gone}/stats cannot be"),
        ([f"--lookupd-http-address={gone}"], f"--lookupd-http-address: http://{gone}/nodes cannot"),
        ([f"--address={nsqd}", f"--address={gone}"], f"WARNING: --address: http://{gone}/stats cannot"),
    ):  # fmt: skip
        status, _, error = run("topics", *words)
        assert status == 1
        assert said in error


def test_an_empty_list_says_so(nsqd: Nsqd, run: Run) -> None:
    address = f"--address={nsqd.http_address}"
    assert run("topics", address) == (
        0, "", "there are no topics: a publish creates one, or `nsq create TOPIC`\n"
    )  # fmt: skip
    nsqd.post("/topic/create?topic=orders")
    assert run("channels", "orders", address) == (
        0, "", "topic orders has no channels: a consumer creates one, or `nsq create orders/CHANNEL`\n"
    )  # fmt: skip
    assert run("channels", "orders", "--json", address) == (0, "[]\n", "")


def test_topics_and_channels_are_added_up(cluster: Cluster) -> None:
    for nsqd in cluster.nsqds:
        publish(nsqd, numbered(3))
        until("there", lambda nsqd=nsqd: channel_of(nsqd)["depth"] == 3)  # type: ignore[misc]
    status, out, _ = cluster("topics")
    assert (status, [line.split() for line in out.splitlines()]) == (
        0,
        [["TOPIC", "DEPTH", "MESSAGES", "CHANNELS", "NSQDS", "PAUSED"], ["orders", "0", "6", "1", "2"]],
    )
    assert cluster("topics", "--names")[1] == "orders\n"
    (channel,) = json.loads(cluster("channels", "orders", "--json")[1])
    assert (channel["channel"], channel["depth"], channel["clients"]) == ("billing", 6, 0)
    assert cluster("channels", "nope") == (1, "", "WARNING: no nsqd has the topic 'nope'\n")


@pytest.mark.parametrize("target", ["nope", "nope/audit", "orders/nope"])
def test_nothing_to_delete_is_an_error_and_asks_for_nothing(cluster: Cluster, target: str) -> None:
    cluster("create", "orders/audit")
    said = f"delete {target}: nothing: no nsqlookupd and no nsqd has {target}\n"
    assert cluster("delete", target) == (1, "", said)


def test_stat_names_what_is_missing(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster("create", "orders/audit")
    assert cluster("stat", "nope/audit", "--count=1")[0] == 1
    assert "no nsqd has topic nope" in caplog.text
    assert cluster("stat", "orders/nope", "--count=1")[0] == 1
    assert "topic orders has no channel nope; it has audit" in caplog.text


def test_a_channel_is_created_paused_emptied_and_deleted_everywhere(cluster: Cluster) -> None:
    lookupd, nsqds = cluster.lookupd, cluster.nsqds

    def reported(key: str) -> list[Any]:
        return [channel_of(nsqd, channel="audit").get(key) for nsqd in nsqds]

    status, out, _ = cluster("create", "orders/audit")
    assert (status, [line.split(":")[1].split()[0] for line in out.splitlines()]) == (
        0,
        ["nsqlookupd", "nsqd", "nsqd"],
    )
    assert "audit" in lookupd.get("/channels?topic=orders").json()["channels"]
    assert cluster("pause", "orders/audit")[0] == 0
    assert reported("paused") == [True, True]
    assert cluster("unpause", "orders/audit")[0] == 0
    assert reported("paused") == [False, False]
    for nsqd in nsqds:
        publish(nsqd, [b"one"])
    until("there", lambda: reported("depth") == [1, 1])
    status, _, error = cluster("empty", "orders/audit")
    assert (status, reported("depth")) == (1, [1, 1])
    assert "--yes" in error
    assert cluster("empty", "--yes", "orders/audit")[0] == 0
    assert reported("depth") == [0, 0]
    assert cluster("delete", "orders/audit", "--yes")[0] == 0
    assert reported("depth") == [None, None]
    assert "audit" not in lookupd.get("/channels?topic=orders").json()["channels"]
    assert cluster("delete", "orders", "--yes")[0] == 0
    assert lookupd.get("/topics").json()["topics"] == []


def test_a_change_that_fails_on_one_nsqd_is_reported_and_made_on_the_others(cluster: Cluster) -> None:
    gone, alive = cluster.nsqds
    address = gone.http_address
    gone.stop(keep_data=True)
    words = [f"--nsqd-http-address={each}" for each in (address, alive.http_address)]
    status, out, error = cluster._run("pause", "orders", *words, "--json")
    report = json.loads(out)
    assert status == 1
    assert report["steps"] == [{"where": f"nsqd {alive.http_address}", "ok": True, "error": ""}]
    assert address in report["problems"][0]
    assert address in error


def test_redrive_moves_the_messages_that_waited_at_its_start(cluster: Cluster) -> None:
    for nsqd, count in zip(cluster.nsqds, (3, 4), strict=True):
        assert nsqd.post("/topic/create?topic=orders.dead").status == 200
        publish(nsqd, numbered(count), "orders.dead")
    cluster.registered("orders.dead")
    status, out, _ = cluster("redrive", "orders.dead", "orders", "--dry-run")
    assert (status, out.splitlines()[-1]) == (0, "7 messages would go to orders")
    assert sum(channel_of(nsqd)["message_count"] for nsqd in cluster.nsqds) == 0
    status, out, _ = cluster("redrive", "orders.dead", "orders", "--rate=1000", "--count=5")
    assert (status, out.splitlines()[-1]) == (0, "5 of 5 messages moved to orders")
    status, out, _ = cluster("redrive", "orders.dead", "orders")
    assert (status, out.splitlines()[-1]) == (0, "2 of 2 messages moved to orders")
    until("there", lambda: sum(channel_of(nsqd)["depth"] for nsqd in cluster.nsqds) == 7)
    assert cluster("redrive", "orders", "orders")[0] == 1


def test_a_redrive_of_what_is_paused_says_so(nsqd: Nsqd, run: Run) -> None:
    create(nsqd, "dead", "redrive")
    nsqd.post("/topic/pause?topic=dead")
    nsqd.post("/channel/pause?topic=dead&channel=redrive")
    status, _, error = run("redrive", "dead", "o", "--dry-run", f"--nsqd-http-address={nsqd.http_address}")
    assert status == 0
    assert "nsq unpause dead\n" in error
    assert "nsq unpause dead/redrive\n" in error


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


@only_ours("Go's nsqd has no peek")
def test_a_peek_takes_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = cluster.nsqds
    publish(first, [b"one", b"two"])
    publish(second, [b"\xff"])
    until("there", lambda: [channel_of(nsqd)["depth"] for nsqd in cluster.nsqds] == [2, 1])
    status, out, _ = cluster("peek", "orders/billing", "-n", "1")
    heads, bodies = out.splitlines()[::2], out.encode("utf-8", "surrogateescape").splitlines()[1::2]
    assert (status, len(heads)) == (0, 2)
    assert b"one" in bodies
    said = "3 messages wait in a channel: nsq peek orders/billing\n"
    assert cluster("peek", "orders") == (0, "", said)
    assert cluster("peek", "orders/nope") == (1, "", "WARNING: no nsqd has the channel 'orders/nope'\n")
    messages = json.loads(cluster("peek", "orders/billing", "--json")[1])
    assert sorted(each.get("body", each.get("body_base64")) for each in messages) == ["/w==", "one", "two"]
    assert [channel_of(nsqd)["depth"] for nsqd in cluster.nsqds] == [2, 1]

    def as_gos(*_: object, **__: object) -> object:
        raise ApiRefused("404 NOT_FOUND", 404, "NOT_FOUND")

    monkeypatch.setattr(NsqdApi, "peek", as_gos)
    status, _, error = cluster("peek", "orders")
    assert status == 1
    assert "it is not one of ours" in error
    assert "nsq tail" in error


def test_a_benchmark_reports_and_leaves_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, error = cluster("bench", "--seconds=200ms", "--json", "--batch=10")
    published, delivered = json.loads(out)
    assert (status, error) == (0, "")
    assert published["messages"] == delivered["messages"] > 0
    assert json.loads(cluster("topics", "--json")[1])[0]["topic"] == "orders"
    assert cluster("topics", "--names")[1] == "orders\n"

    def refused(*_: object) -> None:
        raise ApiRefused("500 INTERNAL_ERROR", 500, "INTERNAL_ERROR")

    monkeypatch.setattr(NsqdApi, "create_channel", refused)
    assert cluster("bench")[0] == 1
    assert cluster("topics", "--names")[1] == "orders\n"


def test_the_doctor_says_what_is_wrong_and_what_to_do(cluster: Cluster) -> None:
    status, out, _ = cluster("doctor")
    assert (status, {line.split()[0] for line in out.splitlines()}) == (0, {"ok"})
    nsqd = cluster.nsqds[0]
    publish(nsqd, [b"one"])
    nsqd.post("/topic/pause?topic=orders")
    publish(nsqd, [b"one"], "forgotten")
    status, out, _ = cluster("doctor")
    assert status == 0
    assert "topic forgotten has no channel, and 1 messages wait\n         Start a consumer" in out
    assert "topic orders is paused\n         nsq unpause orders\n" in out
    words = [f"--nsqd-http-address={each}" for each in (nsqd.http_address, "127.0.0.1:1")]
    status, out, _ = cluster._run("doctor", "--json", *words)
    failures = [each for each in json.loads(out) if each["level"] == "failure"]
    assert (status, [each["where"] for each in failures]) == (1, ["nsqd 127.0.0.1:1"])


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


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 0, "Usage: nsq COMMAND"),
        (["--help"], 0, "doctor"),
        (["help", "create"], 0, "Usage: nsq create TOPIC[/CHANNEL]\n\nCreates a topic"),
        (["create", "--help"], 0, "-lookupd-http-address"),
        (["tail", "--help"], 0, "Usage: nsq tail TOPIC[/CHANNEL] [--address=HOST:PORT] [flags of nsq_tail]"),
        (["help", "tail"], 0, "Usage of nsq_tail"),
        (["--version"], 0, "nsq v1.3.0"),
        (["crate"], 2, "no command crate (did you mean create?)"),
        (["create"], 2, "TOPIC[/CHANNEL] is missing"),
        (["create", "a", "b"], 2, "too many arguments: b"),
        (["create", "a/"], 1, "'a/' is not TOPIC or TOPIC/CHANNEL"),
        (["create", "a b"], 1, "a b"),
        (["tail", "a/"], 1, "nsq tail: 'a/' is not TOPIC or TOPIC/CHANNEL"),
        (["topics", "--lookupd-http-address=127.0.0.1:1"], 1, "127.0.0.1:1"),
        (["topics", "--lookupd-http-address=a", "--nsqd-http-address=b"], 1, "not both"),
        (["completion", "tcsh"], 2, "bash|zsh|fish"),
        (["completion", "--help"], 0, "bash|zsh|fish"),
        (["pub", "a b", "body"], 1, "contains ' '"),
        (["up", "--log-level=loud"], 1, "must be one of: debug"),
        (["up", "--port=65530"], 1, "must be 1 to 65514"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_is_shown_and_mistakes_are_reported(run: Run, words: list[str], status: int, said: str) -> None:
    ended, out, error = run(*words)
    assert ended == status
    assert said in (error if status else out)


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
