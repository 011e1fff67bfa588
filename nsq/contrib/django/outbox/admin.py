"""The list of the messages that wait in the outbox, with the reasons."""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from nsq.contrib.django.outbox.models import OutboxMessage


@admin.register(OutboxMessage)
class OutboxMessageAdmin(admin.ModelAdmin):
    list_display = ("id", "topic", "key", "size", "created_at", "due_at", "attempts", "refused_at", "error")
    list_filter = ("topic", ("refused_at", admin.EmptyFieldListFilter))
    search_fields = ("key", "error")
    ordering = ("id",)
    actions = ("send_again",)

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    @admin.display(description="bytes")
    def size(self, message: OutboxMessage) -> int:
        return len(message.body)

    @admin.action(description="Send refused messages again", permissions=["delete"])
    def send_again(self, request: Any, chosen: Any) -> None:
        count = chosen.filter(refused_at__isnull=False).update(refused_at=None, error="")
        self.message_user(request, f"{count} messages will be sent again.")
