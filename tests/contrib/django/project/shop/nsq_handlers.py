from __future__ import annotations

import os
import time

from nsq import Message
from nsq.contrib.django import consumer
from shop.models import Billed


@consumer("orders", "billing", threads=4, reconnect_max=0.5, default_requeue_delay=0.0, max_attempts=0)
def bill(message: Message) -> None:
    body = message.body.decode()
    if body.startswith("slow"):
        time.sleep(0.5)
    Billed.objects.create(body=body, process=os.getpid())


@consumer("mails", "sending", batch=10, wait=0.1)
async def send(messages: list[Message]) -> None:
    await Billed.objects.acreate(body=f"{len(messages)} mails", process=os.getpid())
