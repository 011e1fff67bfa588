"""Handle up to a hundred messages in one transaction, which is much cheaper than one for each:

    python examples/batch_consumer.py 127.0.0.1:4150 orders.db

nsqd delivers at least once, so a message can come twice; nsq.contrib.once prevents storing it twice.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import nsq
from nsq.contrib.once import Once


class Archive:
    """Stores messages in a table. A batch is stored completely, or requeued completely."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._once = Once("archive")
        with closing(sqlite3.connect(path)) as database, database:
            Once.create(database)
            database.execute("CREATE TABLE IF NOT EXISTS orders (id BLOB, body BLOB)")

    def store(self, messages: list[nsq.Message]) -> None:
        # sqlite3 needs a connection per thread. The second `database` commits, or rolls back.
        with closing(sqlite3.connect(self._path)) as database, database:
            new = self._once.first_of(database, messages)
            rows = [(message.id, message.body) for message in new]
            database.executemany("INSERT INTO orders VALUES (?, ?)", rows)
        # Returning finishes all messages. An error above stores none, and requeues all.
        print(f"stored {len(rows)}", flush=True)


def main(nsqd: str, path: str) -> int:
    consumer = nsq.Consumer("orders", "archive", nsqd=nsqd)
    # Up to 100 messages; after half a second as many as have arrived.
    consumer.add_batch_handler(Archive(path).store, size=100, wait=0.5)
    return 0 if consumer.run() else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT DATABASE")
    sys.exit(main(*sys.argv[1:]))
