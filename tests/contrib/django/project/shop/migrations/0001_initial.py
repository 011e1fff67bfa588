from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("item", models.CharField(max_length=100, unique=True)),
            ],
        ),
        migrations.CreateModel(
            "Billed",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("body", models.CharField(max_length=100)),
                ("process", models.IntegerField()),
            ],
        ),
    ]
