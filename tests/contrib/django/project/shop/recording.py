"""A backend that appends what is published to a file, in the order of publishing, by several processes."""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Iterable


def publish(topic: str, body: bytes, *, defer: float | None = None, timeout: float | None = None) -> None:
    multi_publish(topic, [body])


def multi_publish(topic: str, bodies: Iterable[bytes], *, timeout: float | None = None) -> None:
    time.sleep(random.uniform(0, 0.004))
    with open(os.path.join(os.environ["SHOP_FILES"], "published"), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(b"".join(body + b"\n" for body in bodies))
