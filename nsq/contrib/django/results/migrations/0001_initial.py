"""The table of results."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: list[tuple[str, str]] = []

    operations = [
        migrations.CreateModel(
            name="StoredResult",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("task", models.CharField(max_length=500)),
                ("backend", models.CharField(max_length=100)),
                ("queue_name", models.CharField(max_length=100)),
                ("args", models.JSONField()),
                ("kwargs", models.JSONField()),
                ("run_after", models.DateTimeField(null=True)),
                ("status", models.CharField(max_length=10)),
                ("enqueued_at", models.DateTimeField(db_index=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("last_attempted_at", models.DateTimeField(null=True)),
                ("return_value", models.JSONField(null=True)),
                ("errors", models.JSONField()),
                ("worker_ids", models.JSONField()),
            ],
        ),
    ]
