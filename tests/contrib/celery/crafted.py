"""Messages that somebody else than Celery has made: tasks of which anything may be wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

TASK = "tests.contrib.celery.tasks.run"

#: What stands where something else belongs. No numbers that are seconds: a task must not wait for them.
_WRONG: list[Any] = [
    None,
    True,
    -1,
    1e308,
    "",
    "wrong",
    "\ud800",
    "2001-02-03T04:05:06",
    "0001-01-01T00:00:00+14:00",
    [],
    [1],
    ["a", "b"],
    [1, 2, 3],
    [-1, 1e308],
    [None, "x"],
    {},
    {"a": 1},
    [[]],
    [[], {}],
    [{}, [], 1],
]
_HEADERS = [
    *("lang", "task", "id", "root_id", "parent_id", "group", "meth", "shadow", "eta", "expires", "retries"),
    *("timelimit", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamps"),
    *("stamped_headers", "group_index", "compression", "x-nsq-deaths", "headers", "args", "clock", "chord"),
    *("errbacks", "callbacks", "delivery_info", "properties", "hostname", "loglevel", "is_eager", "utc"),
    *("reply_to", "correlation_id", "redelivered", "called_directly", "timeouts", "kwargs", "chain", "trail"),
]
_PROPERTIES = [
    *("correlation_id", "reply_to", "delivery_mode", "delivery_info", "priority", "body_encoding"),
    *("delivery_tag", "expiration", "content_type", "headers", "timestamp"),
]
_BODIES = [
    *(b"", b"null", b"17", b'"text"', b"[]", b"[1]", b"{}", b"not JSON", b"\xff\xfe", b"[[1], {}]"),
    *(b"[null, null, null]", b"[[1], [], {}]", b"[[1], {}, null]", b"[[1], {}, 17]", b'[[1], {"a": 2}, {}]'),
    *(b'{"task": null}', b'{"args": [1]}', b'{"args": null, "kwargs": null}', b'{"args": 1, "kwargs": {}}'),
    *(b"[" * 5000, b"NaN", b"[[1], {}, {}, {}]", b'"args"', b'["args"]', b"[[], {}, {}]"),
    b'[[1], {}, {"callbacks": 1, "errbacks": 2, "chain": 3, "chord": 4}]',
    b'[[1], {}, {"callbacks": [1], "errbacks": [2], "chain": [3], "chord": {}}]',
    b'[[1], {}, {"task": {}, "id": [], "timelimit": 17}]',
    json.dumps({"task": TASK, "id": "1", "args": [1], "kwargs": {}, "eta": "soon"}).encode(),
    json.dumps({"task": TASK, "args": [1], "kwargs": {}}).encode(),
    json.dumps({"task": TASK, "id": {}, "args": [1], "kwargs": {}, "timelimit": "1"}).encode(),
    json.dumps({"task": {}, "id": [], "args": 1, "kwargs": [], "retries": "x"}).encode(),
]


def messages(count: int, seed: int) -> Iterator[bytes]:
    """Make so many messages for the queue ``celery``, as this package's transport writes them."""
    chance = random.Random(seed)
    for number in range(count):
        headers: dict[str, Any] = {"lang": "py", "task": TASK, "id": str(number), "timelimit": [None, None]}
        properties: dict[str, Any] = {"correlation_id": str(number), "delivery_mode": 2}
        head: dict[str, Any] = {"content_type": "application/json", "content_encoding": "utf-8"}
        body = b"[[%d], {}, {}]" % number
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            where = chance.choice(["headers", "headers", "headers", "properties", "head", "body", "missing"])
            if where == "headers":
                headers[chance.choice(_HEADERS)] = chance.choice(_WRONG)
            elif where == "properties":
                properties[chance.choice(_PROPERTIES)] = chance.choice(_WRONG)
            elif where == "head":
                head[chance.choice(list(head))] = chance.choice([*_WRONG, "application/data", "binary"])
            elif where == "body":
                body = chance.choice(_BODIES)
            else:
                headers.pop(chance.choice(list(headers)), None)
        whole = {"nsq-celery": 1, "exchange": "", "routing_key": "celery", **head}
        yield json.dumps({**whole, "headers": headers, "properties": properties}).encode() + b"\n" + body
