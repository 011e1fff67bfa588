"""``nsq.contrib.once`` in Django's transactions; its other connections are tested in ../test_once.py."""

from __future__ import annotations

import pytest
from django.db import connection, connections, transaction
from shop.models import Order

import nsq
from nsq.contrib.django.once.models import Noted
from nsq.contrib.once import Once
from tests.contrib.postgres import Postgres

from .conftest import Site


def message(number: int = 1) -> nsq.Message:
    return nsq.Message(None, 0.0, 0.0, 1, 1, b"%016x" % number, b"tea")


def test_a_message_is_noted_with_the_data_and_only_with_it(database: None) -> None:
    billing = Once("billing")
    with pytest.raises(ValueError, match="no"), transaction.atomic():
        assert billing.first("default", message())
        Order.objects.create(item="tea")
        raise ValueError("no")
    for using in ("default", connection, connections["default"]):
        with transaction.atomic():
            if billing.first(using, message()):
                Order.objects.create(item="tea")
    assert Order.objects.count() == 1
    assert [str(each) for each in Noted.objects.all()] == [f"billing {message().id_text} 1"]
    with transaction.atomic():
        assert billing.first_of("default", [message(2), message(1), message(2)])[0].id == message(2).id
    assert billing.prune("default") == 0


def test_outside_of_a_transaction_nothing_is_noted(database: None) -> None:
    with pytest.raises(nsq.UsageError, match="begin a transaction"):
        Once("billing").first("default", message())
    assert Noted.objects.count() == 0


def test_another_database_is_refused(database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "mysql")
    with pytest.raises(TypeError, match=r"to a database of mysql; .* must be PostgreSQL or SQLite"):
        Once("billing").first("default", message())


def test_on_postgresql(site: Site, postgres: Postgres) -> None:
    site.environment["SHOP_POSTGRES"] = str(postgres.directory)
    site.manage("migrate", "--verbosity=0")
    program = """
import nsq
from django.db import transaction
from nsq.contrib.once import Once
message = nsq.Message(None, 0.0, 0.0, 1, 1, b"0123456789abcdef", b"tea")
Once.create("default")  # as the migration has
for _ in range(2):
    with transaction.atomic():
        print(Once("billing").first("default", message))
"""
    assert site.manage("shell", "-c", program).endswith("True\nFalse\n")
    assert postgres.query("select effect from nsq_once") == [("billing",)]
