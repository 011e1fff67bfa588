"""Publishing from Django: at once, on commit, from forked servers, and in the tests of a project."""

from __future__ import annotations

import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

import django
import pytest
from asgiref.sync import sync_to_async
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import override_settings
from shop.models import Order

import nsq
from nsq.contrib.django import locmem, publish, publish_on_commit
from nsq.contrib.django.conf import read_settings
from nsq.contrib.django.handlers import chosen
from nsq.contrib.django.publishing import cut
from nsq.contrib.django.testing import handle
from nsq.testing import MemoryNsqd, Nsqd
from tests.integration.consuming import until

from .conftest import PROJECT, Site, bodies

MANAGE = str(PROJECT / "manage.py")


# On commit


def test_nothing_is_sent_before_the_commit_and_nothing_after_a_rollback(
    database: None, nsqd: Nsqd, settings_nsq: None
) -> None:
    with transaction.atomic():
        publish_on_commit("orders", b"kept")
        assert "orders" not in str(nsqd.get("/stats?format=json").text)
    with pytest.raises(ValueError, match="no"), transaction.atomic():
        publish_on_commit("orders", b"lost")
        raise ValueError("no")
    publish_on_commit("orders", b"outside")
    assert bodies(nsqd, "orders", 2) == [b"kept", b"outside"]


def test_the_messages_of_a_transaction_leave_in_one_batch_for_each_topic(
    database: None, outbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []
    monkeypatch.setattr(
        locmem, "multi_publish", lambda topic, bodies, timeout: batches.append((topic, bodies))
    )
    with transaction.atomic():
        for number in range(3):
            with transaction.atomic():
                publish_on_commit("orders", b"%d" % number)
                publish_on_commit("invoices", b"%d" % number)
    assert batches == [("orders", [b"0", b"1", b"2"]), ("invoices", [b"0", b"1", b"2"])]


def test_an_nsqd_that_is_down_costs_the_commit_one_timeout_and_the_data_stays(
    database: None, caplog: pytest.LogCaptureFixture
) -> None:
    down = {"NSQD": "127.0.0.1:1", "ON_COMMIT_TIMEOUT": 0.2}
    with override_settings(NSQ=down):
        with pytest.raises(nsq.PublishFailed) as caught, transaction.atomic():
            Order.objects.create(item="tea")
            publish_on_commit("orders", b"tea")
            publish_on_commit("invoices", b"tea")
        assert caught.value.__notes__ == ["messages not published: 1 for orders, 1 for invoices"]
        with transaction.atomic():
            Order.objects.create(item="cake")
            publish_on_commit("orders", b"cake", robust=True)
    assert Order.objects.count() == 2
    assert "Error calling" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("no topic!", b"x"), nsq.InvalidName),
        (("orders", "text"), nsq.InvalidMessage),
        (("orders", b""), nsq.InvalidMessage),
        (("orders", bytes(2**20 + 1)), nsq.InvalidMessage),
    ],
)
def test_a_message_that_cannot_be_published_is_refused_before_the_commit(
    arguments: tuple[Any, Any], error: type[Exception], database: None, outbox: list[Any]
) -> None:
    with transaction.atomic():
        with pytest.raises(error):
            publish_on_commit(*arguments)
        with pytest.raises(nsq.InvalidMessage):
            publish_on_commit("orders", b"x", defer=-1.0)
    assert outbox == []


def test_batches_are_cut_by_number_and_size() -> None:
    assert [len(batch) for batch in cut([b"x"] * 2001)] == [1000, 1000, 1]
    assert [len(batch) for batch in cut([bytes(300_000)] * 3)] == [1, 1, 1]
    assert list(cut([])) == []


# Settings


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "must be a dictionary"),
        ({}, "has no addresses: give 'NSQD' or 'NSQLOOKUPD'"),
        ({"nsqd": "127.0.0.1:4150"}, "unknown key 'nsqd': did you mean 'NSQD'?"),
        ({"NSQD": "127.0.0.1"}, "NSQ['NSQD'] is '127.0.0.1'"),
        ({"NSQD": 5}, "NSQ['NSQD'] is 5"),
        ({"NSQD": "a:1", "TRANSPORT": "memory"}, "NSQ['TRANSPORT'] is 'memory'"),
        ({"NSQLOOKUPD": [5]}, "NSQ['NSQLOOKUPD'] is [5]"),
        ({"NSQD": "127.0.0.1:4150", "ON_COMMIT_TIMEOUT": 0}, "NSQ['ON_COMMIT_TIMEOUT'] is 0"),
        ({"NSQD": "127.0.0.1:4150", "OPTIONS": {"publish_timeout": -1}}, "NSQ['OPTIONS']: publish_timeout"),
        ({"NSQD": "127.0.0.1:4150", "OPTIONS": None}, "NSQ['OPTIONS'] is None; it must be a dictionary"),
        ({"BACKEND": 5}, "NSQ['BACKEND'] is 5"),
        ({"BACKEND": "shop.nowhere"}, "which cannot be imported"),
        ({"BACKEND": "shop.models"}, "which has no publish and no multi_publish"),
    ],
)
def test_wrong_settings_are_found_by_the_check(given: Any, said: str) -> None:
    with override_settings(NSQ=given):
        found = [each.msg for each in run_checks() if each.id.startswith("nsq.E")]
    assert [said in each for each in found] == [True], found


def test_settings_that_are_right_pass() -> None:
    with override_settings(NSQ={"NSQD": "127.0.0.1:4150", "OPTIONS": {"publish_timeout": 3.0}}):
        assert run_checks() == []
        assert read_settings().config.publish_timeout == 3.0
    with override_settings(NSQ={"NSQD": []}), pytest.raises(ImproperlyConfigured):
        publish("orders", b"x")


@pytest.mark.skipif(django.VERSION >= (6,), reason="not run: this Django has tasks")
def test_the_backend_says_that_it_needs_django_6() -> None:
    with pytest.raises(ImportError, match=r"NsqBackend needs django\.tasks, which Django 6 has"):
        from nsq.contrib.django import NsqBackend  # noqa: F401


# Processes


def test_a_child_forked_after_a_publish_publishes_over_a_connection_of_its_own(
    nsqd: Nsqd, settings_nsq: None
) -> None:
    publish("orders", b"parent")
    child = os.fork()
    if not child:
        status = 1
        try:
            publish("orders", b"child")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    publish("orders", b"parent again")
    assert bodies(nsqd, "orders", 3) == [b"child", b"parent", b"parent again"]


def test_a_script_that_has_published_ends_without_noise(site: Site, nsqd: Nsqd) -> None:
    program = "from nsq.contrib.django import publish; publish('orders', b'x')"
    assert site.manage("shell", "-c", program, python=("-W", "error::ResourceWarning")).count("rror") == 0
    assert bodies(nsqd, "orders", 1) == [b"x"]


def test_gunicorn_forks_workers_after_a_publish_and_reloads_them(site: Site, nsqd: Nsqd) -> None:
    pytest.importorskip("gunicorn")
    port = free_port()
    site.environment |= {"SHOP_PUBLISH_EARLY": "1"}
    pids, stored = set(), {b"from the master"}

    def order(item: str, query: str = "") -> int:
        try:
            url = f"http://127.0.0.1:{port}/orders?item={item}{query}"
            with urllib.request.urlopen(url, timeout=30) as reply:
                pids.add(int(reply.read()))
                stored.add(item.encode())
                return int(reply.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    gunicorn = ["-m", "gunicorn", "--preload", "-w", "3", "-b", f"127.0.0.1:{port}", "project.wsgi"]
    with site.running(*gunicorn) as master:
        until("gunicorn answers", lambda: order("first") in (200, 500))
        assert all(order(f"before{number}") == 200 for number in range(20))
        assert order("lost", "&fail=1") == 500
        before = set(pids)
        master.send_signal(signal.SIGHUP)
        until("new workers answer", lambda: order(f"during{os.urandom(4).hex()}") and pids - before)
        assert all(order(f"after{number}") == 200 for number in range(20))
    found = bodies(nsqd, "orders", len(stored))
    assert stored <= set(found)
    assert b"lost" not in found
    assert "Exception ignored" not in site.said()


def test_runserver_loads_a_changed_program_again_without_noise(site: Site, nsqd: Nsqd) -> None:
    site.environment |= {"SHOP_PUBLISH_EARLY": "1"}
    site.add_app("notes", "")

    def depth() -> int:
        topics = nsqd.get("/stats?format=json&topic=orders").json()["topics"]
        return int(topics[0]["message_count"]) if topics else 0

    with site.running(MANAGE, "runserver", f"127.0.0.1:{free_port()}", status=None):
        until("it has published", lambda: depth() == 1)
        # The reloader notices a change after it has seen the file once.
        changes = iter(range(1000))
        until(
            "it has published again",
            lambda: depth() > 1 or site.add_app("notes", f"number = {next(changes)}\n"),
        )
    assert "Exception ignored" not in site.said()
    assert "ResourceWarning" not in site.said()


# For users' tests


def test_the_tests_of_the_project_pass_and_send_nothing(site: Site, nsqd: Nsqd) -> None:
    assert "Ran 5 tests" in site.manage("test", "--verbosity=1")
    assert nsqd.get("/stats?format=json").json()["topics"] == []


def test_handle_calls_the_bare_handler_on_this_thread() -> None:
    seen: list[Any] = []

    def handler(message: nsq.Message) -> None:
        seen.append((message.topic, message.body, message.attempts))
        message.finish()

    assert handle(handler, b"17", topic="orders", attempts=2).responded
    assert seen == [("orders", b"17", 2)]
    with pytest.raises(nsq.AlreadyResponded):
        handle(lambda message: (message.finish(), message.requeue()), b"17")
    with pytest.raises(ZeroDivisionError):
        handle(lambda message: 1 / 0, b"17")

    class Asynchronous:
        async def __call__(self, message: nsq.Message) -> None:
            await sync_to_async(lambda: seen.append(threading.current_thread()))()

    for asynchronous in (Asynchronous(), Asynchronous().__call__):
        seen.clear()
        handle(asynchronous, b"17")
        assert seen == [threading.current_thread()]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def test_an_nsqd_in_memory_gets_what_a_project_publishes_and_its_consumers_take_it(
    database: None, memory_nsqd: MemoryNsqd
) -> None:
    with override_settings(NSQ={"NSQD": memory_nsqd.tcp_address, "TRANSPORT": memory_nsqd}):
        publish_on_commit("mails", b"one")
        publish("mails", b"two")
        assert memory_nsqd.bodies("mails") == [b"one", b"two"]
        (declared,) = chosen(["mails/sending"])
        taken: list[Any] = []
        with replace(declared, handler=taken.extend).make():
            until("taken", lambda: sorted(each.body for each in taken) == [b"one", b"two"])
