from __future__ import annotations

import os

from django.db import transaction
from django.http import HttpRequest, HttpResponse

from nsq.contrib.django import publish_on_commit
from shop.models import Order


@transaction.atomic
def order(request: HttpRequest) -> HttpResponse:
    item = request.GET["item"]
    Order.objects.create(item=item)
    publish_on_commit("orders", item.encode())
    if "fail" in request.GET:
        raise ValueError("the order is rolled back")
    return HttpResponse(str(os.getpid()))
