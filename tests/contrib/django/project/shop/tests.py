"""Tests as a user writes them; run by ``manage.py test``."""

from __future__ import annotations

from django.db import transaction
from django.test import TestCase, TransactionTestCase

from nsq.contrib.django import publish, publish_on_commit
from nsq.contrib.django.testing import NsqTestMixin
from shop.models import Order


class OrderTests(NsqTestMixin, TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        publish("orders", b"stays in memory too")

    def test_an_order_is_published_when_its_request_commits(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            self.client.get("/orders", {"item": "tea"})
            self.assertEqual(self.outbox, [])
        self.assertPublished("orders", b"tea", count=1)

    def test_a_rolled_back_order_is_not_published(self) -> None:
        with self.captureOnCommitCallbacks(execute=True), self.assertRaises(ValueError):
            self.client.get("/orders", {"item": "tea", "fail": "1"})
        self.assertPublished("orders", count=0)

    def test_two_blocks_publish_each_its_own(self) -> None:
        for item in ("tea", "cake"):
            with self.captureOnCommitCallbacks(execute=True):
                self.client.get("/orders", {"item": item})
        self.assertEqual([each.body for each in self.outbox], [b"tea", b"cake"])

    def test_the_outbox_is_empty_at_first_and_shown_by_a_failing_assertion(self) -> None:
        self.assertEqual(self.outbox, [])
        publish("orders", b"cake")
        with self.assertRaisesMessage(AssertionError, "in the outbox: orders: b'cake'"):
            self.assertPublished("orders", b"tea")


class CommitTests(NsqTestMixin, TransactionTestCase):
    def test_a_real_commit_publishes_what_its_savepoints_kept_in_order(self) -> None:
        with transaction.atomic():
            Order.objects.create(item="tea")
            publish_on_commit("orders", b"1")
            with transaction.atomic():
                publish_on_commit("orders", b"2")
            try:
                with transaction.atomic():
                    publish_on_commit("orders", b"lost")
                    raise ValueError
            except ValueError:
                pass
            publish_on_commit("invoices", b"4", defer=1.0)
            self.assertEqual(self.outbox, [])
        self.assertEqual(
            [tuple(each) for each in self.outbox],
            [("orders", b"1", None), ("orders", b"2", None), ("invoices", b"4", 1.0)],
        )
