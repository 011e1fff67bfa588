"""Handle up to a hundred messages in one transaction, which is much cheaper than one for each:

    python examples/batch_consumer.py 127.0.0.1:4150 orders.db

nsqd delivers at least once, so a message can come twice; the primary key prevents storing it twice.
"""

from __future__ import annotations

import sqlite3
import sys

import nsq


class Archive:
    """Stores messages in a table. A batch is stored completely, or requeued completely."""

    def __init__(self, path: str) -> None:
        self._path = path
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE IF NOT EXISTS orders (id BLOB PRIMARY KEY, body BLOB)")
        database.close()

    def store(self, messages: list[nsq.Message]) -> None:
        rows = [(message.id, message.body) for message in messages]
        database = sqlite3.connect(self._path)  # sqlite3 needs a connection per thread
        try:
            with database:
                database.executemany("INSERT OR IGNORE INTO orders VALUES (?, ?)", rows)
        finally:
            database.close()
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
