"""A FastAPI application that publishes, and handles messages beside its requests:

NSQD=127.0.0.1:4150 uvicorn --app-dir examples/web fastapi_app:app
curl -H 'content-type: application/json' -d '{"order": 1, "amount": 20}' http://127.0.0.1:8000/orders
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request, Response
from pydantic import BaseModel

import nsq
from nsq import aio

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")
log = logging.getLogger("uvicorn.error")


class Order(BaseModel):
    order: int
    amount: int


async def bill(message: nsq.Message) -> None:
    order = json.loads(message.body)
    log.info("billed order %s in process %d", order["order"], os.getpid())


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, object]]:
    # Not at import: with --reload and --workers, a process that only watches the others imports the app too.
    consumer = aio.Consumer("orders", "billing", nsqd=NSQD).add_handler(bill, concurrency=10)
    async with aio.Producer(NSQD) as producer, consumer:
        yield {"producer": producer, "consumer": consumer}


app = FastAPI(lifespan=lifespan)


def producer_of(request: Request) -> aio.Producer:
    producer: aio.Producer = request.state.producer
    return producer


@app.post("/orders", status_code=202)
async def take_order(order: Order, producer: Annotated[aio.Producer, Depends(producer_of)]) -> None:
    await producer.publish("orders", order.model_dump_json().encode(), timeout=2.0)


@app.get("/health")
async def health(request: Request, response: Response) -> str:
    report = request.state.consumer.consumer.health()
    if not report.ok:
        response.status_code = 503
    return str(report.summary)
