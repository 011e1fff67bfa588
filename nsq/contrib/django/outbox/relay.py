"""The relay of Django's outbox: ``nsq.contrib.relay`` over Django's tables and the project's producer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import DatabaseError, InterfaceError, connections
from django.db.models import F
from django.utils import timezone

from nsq.contrib.django import publishing
from nsq.contrib.django.conf import NSQD_BACKEND
from nsq.contrib.django.connections import close_old_connections
from nsq.contrib.django.outbox.models import OutboxMessage, Shard
from nsq.contrib.relay import SHARDS, BaseRelay, Row


class DjangoRelay(BaseRelay):
    def __init__(self, using: str, batch: int) -> None:
        read, connection = publishing.current_settings(), connections[using]
        nsqds = ", ".join([*read.nsqd, *(f"those of nsqlookupd {address}" for address in read.nsqlookupd)])
        route = (
            f"the database {using!r} ({connection.vendor}, {connection.settings_dict['NAME']}) "
            f"to {nsqds if read.backend == NSQD_BACKEND else read.backend}"
        )
        super().__init__(DjangoTables(using), publishing, read.config, batch, route)


class DjangoTables:
    errors: tuple[type[Exception], ...] = (DatabaseError, InterfaceError)

    def __init__(self, using: str) -> None:
        self._messages = OutboxMessage.objects.using(using)
        self._shards = Shard.objects.using(using)

    def connect(self) -> None:
        close_old_connections()

    def add_leases(self) -> None:
        self._shards.bulk_create([Shard(number=each) for each in range(SHARDS)], ignore_conflicts=True)

    def _waiting(self, without: Collection[str]) -> Any:
        return self._messages.filter(refused_at=None).exclude(topic__in=list(without))

    def shards(self, without: Collection[str]) -> list[int]:
        return list(self._waiting(without).order_by().values_list("shard", flat=True).distinct())

    def read(self, shard: int, without: Collection[str], limit: int) -> list[Row]:
        return [
            Row(each.pk, each.topic, bytes(each.body), each.due_at and each.due_at.timestamp())
            for each in self._waiting(without).filter(shard=shard).order_by("id")[:limit]
        ]

    def take(self, shard: int, owner: str, now: float, until: float) -> bool:
        free = self._shards.filter(number=shard, leased_until__lt=now)
        return bool(free.update(owner=owner, leased_until=until))

    def renew(self, shard: int, owner: str, now: float, until: float) -> bool:
        mine = self._shards.filter(number=shard, owner=owner, leased_until__gt=now)
        return bool(mine.update(leased_until=until))

    def release(self, shard: int, owner: str) -> None:
        self._shards.filter(number=shard, owner=owner).update(leased_until=0.0)

    def delete(self, ids: list[int]) -> None:
        self._messages.filter(pk__in=ids).delete()

    def note(self, ids: list[int], error: str, refused: bool) -> None:
        fields = {"refused_at": timezone.now()} if refused else {}
        self._messages.filter(pk__in=ids).update(attempts=F("attempts") + 1, error=error, **fields)
