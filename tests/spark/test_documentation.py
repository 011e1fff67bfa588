"""Python blocks of the Spark pages, and the README's commands for Spark, run in order in one session."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsq.http.nsqd import NsqdApi
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from tests.integration.pages import ROOT, SPARK_PAGES, blocks
from tests.integration.patience import eventually
from tests.integration.shell_session import shell_session
from tests.integration.spark.receivers import with_neighbouring_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PNG = b"\x89PNG"

pytestmark = pytest.mark.usefixtures("fonts")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


@pytest.fixture
def listeners(spark: SparkSession) -> Iterator[dict[str, Any]]:
    """Remove the listeners that a page leaves in the session."""
    names: dict[str, Any] = {}
    yield names
    if "listener" in names:
        spark.streams.removeListener(names["listener"])


def test_each_page_is_tested() -> None:
    assert {page.name for page in SPARK_PAGES} == {"spark.md", "spark-walkthrough.md"}


def test_the_blocks_of_the_guide_run(
    spark: SparkSession,
    listeners: dict[str, Any],
    nsqlookupd: Nsqlookupd,
    nsqd_factory: Factory[Nsqd],
    place: Path,
) -> None:
    nsqd = nsqd_factory(lookupd=[nsqlookupd])
    api = NsqdApi(nsqd.http_address)
    api.create_topic("orders")
    api.create_channel("orders", "spark")
    api.multi_publish("orders", [b'{"order": %d, "amount": 2.5}' % number for number in range(20)])
    eventually(lambda: NsqlookupdApi(nsqlookupd.http_address).lookup("orders").producers)

    names = run_page("spark.md", place, nsqd, nsqlookupd, listeners)

    assert spark.read.parquet(str(place / "data" / "texts")).count() == 20
    assert names["totals"].columns[-3:] == ["amount", "_rescued", "_corrupt"]
    assert spark.read.parquet(str(place / "data" / "copies")).count() == 20
    assert api.stats("large")["topics"][0]["message_count"] == 20
    assert api.stats("greetings")["topics"][0]["message_count"] == 2


def test_the_blocks_of_the_walkthrough_run(
    spark: SparkSession, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd], place: Path
) -> None:
    nsqd = with_neighbouring_ports(nsqd_factory)
    names = run_page("spark-walkthrough.md", place, nsqd, nsqlookupd, {})

    assert (place / "visits.png").read_bytes().startswith(PNG)
    assert (
        NsqdApi(nsqd.http_address).stats("visits_again")["topics"][0]["message_count"]
        == names["did"].rows
        > 0
    )
    assert (ROOT / "docs" / "images" / "visits.png").read_bytes().startswith(PNG)


def test_the_commands_for_spark_in_the_tutorial_run(java: None, tmp_path: Path) -> None:
    """They run in the shell in which the daemons were started."""
    environment = {
        name: value for name, value in os.environ.items() if name.startswith(("JAVA", "SPARK", "MPL"))
    }
    with shell_session(tmp_path, **environment) as session:
        session.run("nsq up &", "Ctrl-C stops them")
        session.follow(
            ROOT / "docs" / "tutorial.md",
            [
                (
                    "nsq-spark metrics clicks --nsqd 127.0.0.1:4150 --window '1 second' --chart clicks.png",
                    "^100 messages(.*\n)*.*drawn: clicks.png",
                ),
                ("nsq-spark archive clicks --nsqd 127.0.0.1:4150 --to clicks", "^100 messages.* 1 files: "),
            ],
            lambda command: "clicks" not in command,
        )
        session.run("kill %1; wait")
    assert (tmp_path / "clicks.png").read_bytes().startswith(PNG)


def run_page(
    name: str, place: Path, nsqd: Nsqd, nsqlookupd: Nsqlookupd, names: dict[str, Any]
) -> dict[str, Any]:
    """Run the blocks of a page; return their variables."""
    stands_for = {
        "127.0.0.1:4150": nsqd.tcp_address,
        "127.0.0.1:4151": nsqd.http_address,
        "127.0.0.1:4161": nsqlookupd.http_address,
        "/data/": f"{place}/data/",
    }
    (place / "data").mkdir()
    pattern = re.compile("|".join(map(re.escape, stands_for)))
    for block in blocks(ROOT / "docs" / name):
        if block.language == "python":
            code = pattern.sub(lambda found: stands_for[found[0]], block.code)
            exec(compile(code, block.name, "exec", dont_inherit=True), names)
    return names
