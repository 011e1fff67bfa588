"""``manage.py nsq_relay``: publishes the messages of the outbox until SIGTERM."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections, router
from django.utils import timezone

from nsq.contrib.django.management.commands.nsq_consume import log_to_stderr
from nsq.contrib.django.outbox.models import OutboxMessage
from nsq.contrib.django.outbox.relay import DjangoRelay
from nsq.contrib.django.outbox.writing import check_database


class Command(BaseCommand):
    help = "Publishes the messages of the outbox. Several relays may run at once. SIGTERM ends it."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--database", choices=tuple(connections), help="the database of the outbox (default: as routed)"
        )
        parser.add_argument("--batch", type=int, default=500, help="messages read at a time (default: 500)")
        parser.add_argument(
            "--poll",
            type=float,
            default=1.0,
            help="seconds to sleep when nothing waits (default: 1)",
        )
        parser.add_argument("--once", action="store_true", help="end when nothing more can be published")
        parser.add_argument(
            "--purge",
            type=float,
            metavar="DAYS",
            help="publish nothing: delete the messages that nsqd has refused so many days ago, and end",
        )

    def handle(self, *_: Any, verbosity: int, batch: int, poll: float, once: bool, **options: Any) -> None:
        log_to_stderr(verbosity)
        if batch < 1 or not poll > 0:
            raise CommandError(f"--batch is {batch} and --poll {poll}; both must be above 0")
        using = options["database"] or router.db_for_write(OutboxMessage)
        for problem in check_database(using):
            raise CommandError(f"{problem.msg}. {problem.hint}")
        if options["purge"] is not None:
            self._purge(using, options["purge"])
            return
        if not DjangoRelay(using, batch).run(poll=poll, once=once):
            raise CommandError("the outbox could not be published; the log says why")

    def _purge(self, using: str, days: float) -> None:
        if not days >= 0:
            raise CommandError(f"--purge is {days}; it must be a number of days")
        old = OutboxMessage.objects.using(using).filter(refused_at__lt=timezone.now() - timedelta(days=days))
        count, _ = old.delete()
        self.stdout.write(f"{count} messages deleted")
