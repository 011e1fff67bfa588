"""The app of ``nsq.contrib.django``."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class NsqConfig(AppConfig):
    name = "nsq.contrib.django"
    label = "nsq"  # the default one, "django", would begin the names of tables
    verbose_name = "NSQ"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from nsq.contrib.django import checks

        register(checks.check_settings)
        register(checks.check_consumers)
