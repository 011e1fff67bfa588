"""The app of ``nsq.contrib.django.once``."""

from __future__ import annotations

from django.apps import AppConfig


class OnceConfig(AppConfig):
    name = "nsq.contrib.django.once"
    label = "nsq_once"
    verbose_name = "NSQ messages that had their effect"
