"""The table of ``nsq.contrib.once``."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: list[tuple[str, str]] = []

    operations = [
        migrations.CreateModel(
            name="Noted",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "effect", "message", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("effect", models.CharField(max_length=100)),
                ("message", models.CharField(max_length=200)),
                ("at", models.BigIntegerField()),
            ],
            options={"db_table": "nsq_once"},
        ),
    ]
