"""The app of ``nsq.contrib.django.outbox``."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class OutboxConfig(AppConfig):
    name = "nsq.contrib.django.outbox"
    label = "nsq_outbox"
    verbose_name = "NSQ outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from nsq.contrib.django.outbox.writing import check_database

        register(check_database)
