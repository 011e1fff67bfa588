"""The tables of the outbox."""

from __future__ import annotations

from django.db import models

from nsq.contrib.relay import LONGEST_KEY


class OutboxMessage(models.Model):
    """A message that is not published yet; publishing deletes it."""

    topic = models.CharField(max_length=64)
    body = models.BinaryField()
    key = models.CharField(max_length=LONGEST_KEY, blank=True)
    shard = models.PositiveSmallIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)
    #: When consumers get it; None: at once.
    due_at = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    #: Why the last attempt failed.
    error = models.CharField(max_length=500, blank=True)
    #: Set for a message that nsqd refuses for good: no relay takes it.
    refused_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["shard", "id"],
                condition=models.Q(refused_at__isnull=True),
                name="nsq_outbox_waiting",
            )
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.pk}"


class Shard(models.Model):
    """A shard and its lease: until ``leased_until``, in seconds since the epoch, it is ``owner``'s."""

    number = models.PositiveSmallIntegerField(primary_key=True)
    owner = models.CharField(max_length=40, blank=True)
    leased_until = models.FloatField(default=0.0)

    def __str__(self) -> str:
        return str(self.number)
