"""The app of ``nsq.contrib.django.results``."""

from __future__ import annotations

from django.apps import AppConfig


class ResultsConfig(AppConfig):
    name = "nsq.contrib.django.results"
    label = "nsq_results"
    verbose_name = "NSQ task results"
    default_auto_field = "django.db.models.BigAutoField"
