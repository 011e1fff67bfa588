"""The table of ``nsq.contrib.once``."""

from __future__ import annotations

from django.db import models

from nsq.contrib.once import LONGEST_EFFECT, LONGEST_ID


class Noted(models.Model):
    """A message that has had its effect."""

    pk = models.CompositePrimaryKey("effect", "message")
    effect = models.CharField(max_length=LONGEST_EFFECT)
    message = models.CharField(max_length=LONGEST_ID)
    #: In seconds since the epoch.
    at = models.BigIntegerField()

    class Meta:
        db_table = "nsq_once"

    def __str__(self) -> str:
        return f"{self.effect} {self.message}"
