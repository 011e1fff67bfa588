"""The outbox: written with the data, published by relays that may die at any time."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone
from shop.models import Order

import nsq
from nsq.contrib.django import locmem
from nsq.contrib.django.outbox import publish
from nsq.contrib.django.outbox.models import OutboxMessage, Shard
from nsq.contrib.django.outbox.relay import DjangoRelay, DjangoTables
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.contrib.postgres import Postgres
from tests.contrib.relays import expect_nothing_lost
from tests.integration.consuming import until
from tests.interop.auth_server import running_auth_server

from .conftest import PROJECT, Site, bodies

MANAGE = str(PROJECT / "manage.py")


def waiting() -> list[str]:
    rows = OutboxMessage.objects.order_by("id").values_list("body", flat=True)
    return [bytes(body).decode() for body in rows]


def test_the_migrations_make_the_tables_that_the_models_describe() -> None:
    apps = ("nsq_once", "nsq_outbox", "nsq_results")
    call_command("makemigrations", *apps, check_changes=True, dry_run=True, verbosity=0)


def test_a_message_is_stored_with_the_data_and_only_with_it(outbox: Any) -> None:
    with transaction.atomic():
        Order.objects.create(item="tea")
        publish("orders", b"tea")
    with pytest.raises(ValueError, match="no"), transaction.atomic():
        publish("orders", b"cake")
        raise ValueError("no")
    publish("orders", b"outside")
    assert waiting() == ["tea", "outside"]
    with pytest.raises(nsq.InvalidName):
        publish("no topic!", b"x")
    for key in (17, "k" * 201):
        with pytest.raises(nsq.InvalidMessage, match="key is"):
            publish("orders", b"x", key=key)  # type: ignore[arg-type]
    assert outbox == []


def test_a_relay_publishes_in_batches_by_topic_and_deletes(
    outbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction.atomic():
        for number in range(10):
            publish("orders", b"%d" % number, key="ada")
            publish("invoices", b"%d" % number, key="ada")
    batches = []

    def note(topic: str, bodies: list[bytes], timeout: float) -> None:
        batches.append((topic, bodies))

    monkeypatch.setattr(locmem, "multi_publish", note)
    call_command("nsq_relay", "--once")
    numbers = [b"%d" % number for number in range(10)]
    assert batches == [("orders", numbers), ("invoices", numbers)]
    assert waiting() == []


def test_a_deferred_message_is_deferred_by_nsqd_for_what_is_left_and_keeps_its_place(
    outbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction.atomic():
        publish("orders", b"1", key="ada")
        publish("orders", b"2", key="ada", defer=60.0)
        publish("orders", b"3", key="ada", defer=0.001)
        publish("orders", b"4", key="ada")
    OutboxMessage.objects.filter(body=b"2").update(due_at=timezone.now() + timedelta(seconds=40))
    time.sleep(0.01)
    call_command("nsq_relay", "--once")
    assert [each.body for each in outbox] == [b"1", b"2", b"3", b"4"]
    assert [each.defer is not None for each in outbox] == [False, True, False, False]
    assert 30 < outbox[1].defer <= 40
    for defer in (-1.0, 3601.0):
        with pytest.raises(nsq.InvalidMessage, match="must be 0 to 3600 seconds"):
            publish("orders", b"5", defer=defer)


def test_a_message_that_nsqd_cannot_defer_for_so_long_is_set_aside(
    database: None, nsqd_factory: Factory[Nsqd]
) -> None:
    nsqd = nsqd_factory(max_req_timeout=1.0)
    with override_settings(NSQ={"NSQD": nsqd.tcp_address}):
        publish("orders", b"1", key="ada", defer=30.0)
        publish("orders", b"2", key="ada")
        call_command("nsq_relay", "--once", verbosity=0)
        assert bodies(nsqd, "orders", 1) == [b"2"]
    left = OutboxMessage.objects.get()
    assert left.refused_at is not None
    assert "out of range" in left.error


@pytest.mark.parametrize(("behind", "refused"), [(3.6, 0), (9.9, 0), (60.0, 1)])
def test_the_clock_of_a_relay_may_be_behind_the_one_of_the_writer(
    database: None, settings_nsq: None, behind: float, refused: int
) -> None:
    publish("orders", b"late", defer=3600.0)
    OutboxMessage.objects.update(due_at=timezone.now() + timedelta(seconds=3600.0 + behind))
    call_command("nsq_relay", "--once", verbosity=0)
    errors = list(OutboxMessage.objects.values_list("error", flat=True))
    assert len(errors) == refused
    assert all("max_defer" in error for error in errors)


def test_a_relay_says_each_change_once(
    outbox: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    relay = DjangoRelay("default", 500)
    for topic in ("orders", "invoices"):
        publish(topic, b"1", key="ada")
    errors: list[nsq.NsqError] = []

    def fail(topic: str, bodies: list[bytes], timeout: float) -> None:
        raise errors[-1]

    caplog.set_level("INFO", "nsq")
    with monkeypatch.context() as patch:
        patch.setattr(locmem, "multi_publish", fail)
        for error in (nsq.PublishFailed("orders: down"), nsq.PublishFailed("invoices: down")):
            errors.append(error)
            assert relay.run_once()
        errors.append(nsq.PublishUncertain("not answered"))
        assert relay.run_once()
        errors.append(nsq.Unauthorized("E_UNAUTHORIZED"))
        for _ in range(3):
            relay.refused.clear()
            relay.run_once()
    relay.refused.clear()
    assert relay.run_once() == 0.0
    assert [(each.levelname, each.getMessage().split(":")[0]) for each in caplog.records] == [
        ("ERROR", "cannot publish"),
        ("ERROR", "cannot publish"),
        ("ERROR", "cannot publish to orders"),
        ("ERROR", "cannot publish to invoices"),
        ("INFO", "the relay works again"),
    ]
    assert "down" in caplog.records[0].getMessage()
    assert "not answered" in caplog.records[1].getMessage()


def test_a_relay_leaves_a_leased_shard_alone_until_the_lease_ends(outbox: Any) -> None:
    relay, tables, now = DjangoRelay("default", 500), DjangoTables("default"), time.time()
    tables.add_leases()
    publish("orders", b"1", key="ada")
    number = OutboxMessage.objects.get().shard
    assert tables.take(number, "another", now, now + 60)
    assert relay.run_once() is None
    assert outbox == []
    Shard.objects.filter(number=number).update(leased_until=time.time() - 1)
    assert relay.run_once() == 0.0
    assert [each.body for each in outbox] == [b"1"]


def test_a_relay_that_has_lost_its_lease_publishes_nothing(outbox: Any) -> None:
    relay, other = (DjangoRelay("default", 500) for _ in range(2))
    relay.run_once()
    publish("orders", b"1", key="ada")
    number = OutboxMessage.objects.get().shard
    take = relay._take

    def take_and_sleep(number: int, now: float) -> bool:
        taken = take(number, now)
        Shard.objects.filter(number=number).update(leased_until=now - 1)
        assert other._take(number, now)
        relay._lease_ends = time.monotonic()
        return taken

    relay._take = take_and_sleep
    relay.run_once()
    assert outbox == []
    assert Shard.objects.get(number=number).owner == other._owner


def test_while_nsqd_is_down_messages_wait_with_the_reason(site: Site, nsqd: Nsqd) -> None:
    site.manage("shell", "-c", "from nsq.contrib.django.outbox import publish; publish('orders', b'tea')")
    site.environment["SHOP_NSQD"] = "127.0.0.1:1"
    site.environment["SHOP_PUBLISH_TIMEOUT"] = "0.3"
    said = site.manage("nsq_relay", "--once", status=1)
    assert "cannot publish" in said
    assert f"from the database 'default' (sqlite, {site.environment['SHOP_SQLITE']}) to 127.0.0.1:1" in said
    lines = [line for line in said.splitlines() if "127.0.0.1:1" in line]
    assert len(lines) == 3, lines  # the line above, one of the producer, one of the relay
    ((attempts, error),) = site.query("select attempts, error from nsq_outbox_outboxmessage")
    assert attempts == 1
    assert "Connection refused" in error
    site.environment["SHOP_NSQD"] = nsqd.tcp_address
    with site.running(MANAGE, "nsq_relay", "--poll=0.1"):
        assert bodies(nsqd, "orders", 1) == [b"tea"]
        until("deleted", lambda: site.query("select * from nsq_outbox_outboxmessage") == [])
    assert "Traceback" not in site.said()


def test_a_topic_that_may_not_be_published_to_does_not_hold_up_others(
    database: None, nsqd_factory: Factory[Nsqd]
) -> None:
    grant = {"topic": "orders", "channels": [".*"], "permissions": ["subscribe", "publish"]}
    options = {"NSQD": "", "OPTIONS": {"auth_secret": "s"}}
    with running_auth_server({"s": [grant]}) as address:
        options["NSQD"] = nsqd_factory(auth_http_addresses=[address]).tcp_address
        with override_settings(NSQ=options):
            publish("secret", b"waits", key="ada")
            publish("orders", b"same key", key="ada")
            for number in range(40):
                publish("orders", b"other", key=str(number))
            with pytest.raises(CommandError, match="the log says why"):
                call_command("nsq_relay", "--once", "--batch=1", verbosity=0)
    left = OutboxMessage.objects.get()
    assert (bytes(left.body), left.refused_at) == (b"waits", None)
    assert "E_UNAUTHORIZED" in left.error


def test_the_admin_lists_waiting_messages_with_the_reason_and_sends_refused_ones_again(outbox: Any) -> None:
    from django.contrib.auth.models import User
    from django.test import Client

    publish("orders", b"tea", key="ada")
    OutboxMessage.objects.update(refused_at=timezone.now(), error="E_BAD_MESSAGE for a reason")
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    page = "/admin/nsq_outbox/outboxmessage/"
    assert "E_BAD_MESSAGE for a reason" in client.get(page).content.decode()
    chosen = OutboxMessage.objects.get().pk
    assert client.get(f"{page}{chosen}/change/").status_code == 200
    client.post(page, {"action": "send_again", "_selected_action": [chosen]})
    call_command("nsq_relay", "--once")
    assert [each.body for each in outbox] == [b"tea"]


def test_a_purge_deletes_only_messages_that_were_refused_long_ago(
    outbox: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for body, days in ((b"old", 31), (b"new", 29), (b"waits", None)):
        publish("orders", body)
        refused_at = None if days is None else timezone.now() - timedelta(days=days)
        OutboxMessage.objects.filter(body=body).update(refused_at=refused_at)
    call_command("nsq_relay", "--purge=30")
    assert waiting() == ["new", "waits"]
    assert capsys.readouterr().out == "1 messages deleted\n"
    with pytest.raises(CommandError, match="--purge is -1"):
        call_command("nsq_relay", "--purge=-1")


def test_sqlite_without_immediate_transactions_is_refused(
    outbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred = connections.settings["default"] | {"OPTIONS": {}}
    monkeypatch.setitem(connections.settings, "other", deferred)
    with pytest.raises(CommandError, match="database 'other' needs transactions that begin as writers"):
        call_command("nsq_relay", "--once", "--database=other")
    with pytest.raises(CommandError, match="invalid choice: 'another'"):
        call_command("nsq_relay", "--once", "--database=another")
    call_command("nsq_relay", "--once")
    monkeypatch.setitem(connections.settings, "default", deferred)
    assert "nsq.E006" in [each.id for each in run_checks()]


def test_a_transaction_waits_for_another_one_that_writes_the_same_key(site: Site, postgres: Postgres) -> None:
    site.environment["SHOP_POSTGRES"] = str(postgres.directory)
    site.manage("migrate", "--verbosity=0")
    program = """
import threading
from django.db import connection, transaction
from nsq.contrib.django.outbox import publish
from nsq.contrib.django.outbox.models import OutboxMessage
ended = []
def write(key):
    publish("orders", b"second", key=key)
    ended.append(key)
    connection.close()
def begin(key):
    thread = threading.Thread(target=write, args=(key,))
    thread.start()
    return thread
with transaction.atomic():
    publish("orders", b"first", key="ada")
    same, other = begin("ada"), begin("bob")
    other.join(60)
    same.join(1)
    print(ended)
same.join(60)
print(ended)
"""
    assert "['bob']\n['bob', 'ada']\n" in site.manage("shell", "-c", program)


WRITER = """
import random, sys
from django.db import transaction
from nsq.contrib.django.outbox import publish
writer, count = int(sys.argv[1]), int(sys.argv[2])
numbers = {}
for _ in range(count):
    with transaction.atomic():
        key = f"{writer}-{random.randrange(5)}"
        numbers[key] = numbers.get(key, 0) + 1
        publish("orders", f"{key} {numbers[key]}".encode(), key=key)
        if random.random() < 0.1:
            transaction.set_rollback(True)
            numbers[key] -= 1
"""


#: The lease of a relay that was killed ends after 6 s instead of 40.
RELAY = """
from django.core.management import call_command
from nsq.contrib import relay
relay._CLOCKS = 5.0
call_command("nsq_relay", batch=7, poll=0.05)
"""


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_relays_that_are_killed_lose_nothing_and_keep_the_order_of_each_key(
    database: str, site: Site, request: pytest.FixtureRequest
) -> None:
    if database == "postgresql":
        site.environment["SHOP_POSTGRES"] = str(request.getfixturevalue("postgres").directory)
        site.manage("migrate", "--verbosity=0")
    site.environment |= {"SHOP_BACKEND": "shop.recording", "SHOP_PUBLISH_TIMEOUT": "0.5"}
    published = site.directory / "published"
    for name, text in (("relay.py", RELAY), ("writer.py", WRITER)):
        (site.directory / name).write_text(f"import django\ndjango.setup()\n{text}")
    ask = request.getfixturevalue("postgres").query if database == "postgresql" else site.query

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with site.log.open("ab") as log:
            command = [sys.executable, str(site.directory / name), *arguments]
            return subprocess.Popen(command, cwd=PROJECT, env=site.environment, stdout=log, stderr=log)

    expect_nothing_lost(
        partial(start, "writer.py"),
        partial(start, "relay.py"),
        lambda: published.read_text().splitlines() if published.exists() else [],
        lambda: ask("select count(*) from nsq_outbox_outboxmessage")[0][0] == 0,
        site.said,
    )
