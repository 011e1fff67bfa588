from __future__ import annotations

from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100, unique=True)


class Billed(models.Model):
    body = models.CharField(max_length=100)
    process = models.IntegerField()
