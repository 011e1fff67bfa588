"""``@consumer`` and ``manage.py nsq_consume``: processes, reloads, and database connections."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection, connections, transaction
from django.test import override_settings

import nsq
from nsq.contrib.django import consumer
from nsq.contrib.django.checks import check_consumers
from nsq.contrib.django.connections import close_old_connections, with_connections
from nsq.contrib.django.handlers import _declared, chosen
from nsq.testing import Nsqd
from tests.contrib.postgres import ASKING, SESSIONS, Postgres
from tests.integration.consuming import channel_of, clients_of, until

from .conftest import PROJECT, ROOT, Site

MANAGE = str(PROJECT / "manage.py")


def publish(nsqd: Nsqd, topic: str, bodies: list[bytes]) -> None:
    with nsq.Producer(nsqd.tcp_address) as producer:
        producer.multi_publish(topic, bodies)


# Processes


def test_two_processes_handle_messages_and_sigterm_lets_handlers_finish(site: Site, nsqd: Nsqd) -> None:
    with site.running(MANAGE, "nsq_consume", "--processes=2", "shop.bill"):
        until("both are connected", lambda: len(clients_of(nsqd, "orders", "billing")) == 2)
        publish(nsqd, "orders", [b"slow %d" % number for number in range(8)])
        until("all are in work", lambda: channel_of(nsqd, "orders", "billing")["in_flight_count"] == 8)
    assert site.billed() == [f"slow {number}" for number in range(8)]
    assert len(site.query("select distinct process from shop_billed")) == 2
    assert "mails" not in site.said()


def test_batches_reach_their_handler_together_and_it_may_be_async(site: Site, nsqd: Nsqd) -> None:
    publish(nsqd, "mails", [b"x"] * 10)
    with site.running(MANAGE, "nsq_consume", "mails/sending", "--processes=1"):
        until("sent", site.billed)
    assert site.billed() == ["10 mails"]


APP = """
from nsq.contrib.django import consumer
from nsq.contrib.django.checks import check_consumers
{broken}
@consumer("notes", "writing")
def write(message):
    from shop.models import Billed
    Billed.objects.create(body="{version} " + message.body.decode(), process=0)
"""


@pytest.mark.parametrize("flags", [[], ["--reload"]], ids=["SIGHUP", "--reload"])
def test_a_changed_program_replaces_the_processes_unless_it_is_broken(
    flags: list[str], site: Site, nsqd: Nsqd
) -> None:
    def change(version: str, broken: str = "") -> None:
        site.add_app("notes", APP.format(version=version, broken=broken))
        if not flags and site.said():
            supervisor.send_signal(signal.SIGHUP)

    change("first")
    with site.running("-W", "error", MANAGE, "nsq_consume", "--processes=1", *flags) as supervisor:
        until("connected", lambda: clients_of(nsqd, "notes", "writing"))
        change("broken", "1 / 0")
        site.until_said("ZeroDivisionError")
        publish(nsqd, "notes", [b"a"])
        until("the first goes on", lambda: site.billed() == ["first a"])
        change("second")
        site.until_said("ended, as it was asked to")
        publish(nsqd, "notes", [b"b"])
        until("the second has it", lambda: site.billed() == ["first a", "second b"])
    assert "already registered" not in site.said()


def test_a_name_that_no_consumer_has_is_refused(site: Site) -> None:
    said = site.manage("nsq_consume", "shop.nothing", status=1)
    assert "no consumer is called shop.nothing; declared are: shop.bill (orders/billing), shop.send" in said
    assert "Traceback" not in said


def test_a_broken_module_is_named_with_its_traceback(site: Site) -> None:
    site.add_app("notes", "import nothing_like_this\n")
    said = site.manage("check", status=1)
    assert "nsq.E003" in said
    assert "notes/nsq_handlers.py" in said
    assert "No module named 'nothing_like_this'" in said


def test_nsq_work_runs_the_consumers_of_a_project(site: Site, nsqd: Nsqd) -> None:
    publish(nsqd, "orders", [b"1"])
    arguments = ["--setup=nsq.contrib.django:setup", "nsq.contrib.django:consumers", "--processes=1"]
    with site.running("-m", "nsq", "work", *arguments):
        until("billed", site.billed)
    assert site.billed() == ["1"]


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ("nowhere:setup", "there is no module nowhere"),
        ("nsq.contrib.django", "write module:function"),
        ("nsq:__version__", "which is not a function"),
    ],
)
def test_a_wrong_setup_of_nsq_work_is_refused(setup: str, said: str) -> None:
    command = [sys.executable, "-m", "nsq", "work", f"--setup={setup}", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


# Checks


@pytest.fixture
def declaring() -> Any:
    """Forget what a test declares."""
    chosen(())
    before = list(_declared)
    yield
    _declared[:] = before


def problems(**settings: Any) -> dict[str, str]:
    with override_settings(NSQ={"NSQD": "127.0.0.1:4150"}, **settings):
        return {each.id: each.msg for each in run_checks()}


def test_consumers_that_cannot_be_made_or_share_a_channel_are_found_by_the_check(declaring: None) -> None:
    assert problems() == {}
    consumer("orders", "billing")(lambda message: None)
    consumer("orders", "adding", threads="3")(lambda message: None)  # type: ignore[arg-type]
    consumer("orders", "counting", thread=3)(lambda message: None)
    found = problems()
    assert set(found) == {"nsq.E004", "nsq.E005"}
    assert "(orders/counting)" in found["nsq.E004"]
    assert "thread" in found["nsq.E004"]
    assert "shop.bill (orders/billing)" in found["nsq.E005"]


def test_a_connection_for_each_message_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    assert "CONN_MAX_AGE of the database 'default' is 0" in problems()["nsq.W001"]


@pytest.mark.parametrize(
    ("pool", "warned"), [(True, False), ({"max_size": 3}, True), ({"min_size": 8}, False)]
)
def test_a_pool_that_is_smaller_than_the_threads_is_warned_about(
    pool: Any, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = connections.settings["default"]
    monkeypatch.setitem(database, "ENGINE", "django.db.backends.postgresql")
    monkeypatch.setitem(database, "OPTIONS", {"pool": pool})
    monkeypatch.setitem(database, "CONN_MAX_AGE", 0)
    # Our check alone: others of Django's would connect to this database.
    with override_settings(NSQ={"NSQD": "127.0.0.1:4150"}):
        found = {each.id for each in check_consumers()}
    assert ("nsq.W002" in found, "nsq.W001" in found) == (warned, False)


# Database connections


def test_connections_within_a_transaction_stay_open(database: None) -> None:
    with transaction.atomic():
        connection.close_at = 0.0
        close_old_connections()
        assert connection.connection is not None
        with_connections(lambda message: None)(None)
        assert connection.connection is not None


def test_a_database_that_restarts_costs_no_message_and_ended_threads_leave_no_connection(
    site: Site, nsqd: Nsqd, postgres: Postgres
) -> None:
    site.environment["SHOP_POSTGRES"] = str(postgres.directory)
    site.manage("migrate", "--verbosity=0")

    def billed() -> int:
        return len(postgres.query("select distinct body from shop_billed"))

    with site.running(MANAGE, "nsq_consume", "shop.bill", "--processes=1"):
        publish(nsqd, "orders", [b"%d" % number for number in range(200)])
        until("the first are billed", lambda: billed() == 200)
        # Four handler threads; the supervisor has none.
        until("only the handlers are connected", lambda: 1 <= postgres.sessions() <= 4)
        postgres.stop()
        publish(nsqd, "orders", [b"again %d" % number for number in range(50)])
        postgres.start()
        until("the others are billed", lambda: billed() == 250)
    until("no connection is left", lambda: postgres.sessions() == 0)
    assert {body for (body,) in postgres.query("select body from shop_billed")} == {
        *map(str, range(200)), *(f"again {number}" for number in range(50))
    }  # fmt: skip


def test_a_pool_that_the_supervisor_has_opened_is_not_shared_with_its_workers(
    site: Site, nsqd: Nsqd, postgres: Postgres
) -> None:
    site.environment |= {"SHOP_POSTGRES": str(postgres.directory), "SHOP_POOL": "1"}
    site.manage("migrate", "--verbosity=0")
    site.add_app("notes", "from shop.models import Order\nOrder.objects.count()\n")
    publish(nsqd, "orders", [b"%d" % number for number in range(40)])
    with site.running(MANAGE, "nsq_consume", "shop.bill", "--processes=2"):
        until("all are billed", lambda: len(postgres.query("select body from shop_billed")) == 40)
    assert "Traceback" not in site.said()


def test_the_connections_of_a_consumers_threads_close_when_it_stops(
    site: Site, nsqd: Nsqd, postgres: Postgres
) -> None:
    site.environment["SHOP_POSTGRES"] = str(postgres.directory)
    site.manage("migrate", "--verbosity=0")
    program = f"""
import gc, sys
gc.disable()
from nsq.contrib.django.handlers import chosen
from django.db import connection
import psycopg, time
consumer, = [each.make() for each in chosen(["shop.bill"])]
consumer.start()
from nsq.contrib.django import publish
for number in range(20):
    publish("orders", b"slow")
def sessions():
    with psycopg.connect(
        host={str(postgres.directory)!r}, user="postgres", application_name={ASKING!r}, autocommit=True
    ) as asking:
        return asking.execute({SESSIONS!r}).fetchone()[0]
deadline = time.monotonic() + 60
while sessions() < 4 and time.monotonic() < deadline: time.sleep(0.05)
print("open", sessions() >= 4)
consumer.stop()
deadline = time.monotonic() + 10
while sessions() and time.monotonic() < deadline: time.sleep(0.05)
print("left", sessions())
"""
    assert "open True\nleft 0\n" in site.manage("shell", "-c", program)
