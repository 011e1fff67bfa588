"""Handle messages in a script, until SIGTERM or Ctrl-C:

    python examples/script_consumer.py 127.0.0.1:4161 [10.0.0.2:4161 …]     # HTTP addresses of nsqlookupds
    curl -d '{"order": 1, "amount": 20}' 'http://127.0.0.1:4151/pub?topic=orders'

When the handler returns, the message is finished. When it raises, nsqd delivers the message again later, at
most max_attempts times.
"""

from __future__ import annotations

import json
import logging
import sys

import nsq

log = logging.getLogger("billing")


def bill(message: nsq.Message) -> None:
    order = json.loads(message.body)
    if order["amount"] > 1000:
        # Not a failure: logs nothing, and does not slow down other messages.
        raise nsq.Requeue(delay=60.0, backoff=False)
    log.info("order %s: %s (attempt %d)", order["order"], order["amount"], message.attempts)


def main(nsqlookupds: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    consumer = nsq.Consumer("orders", "billing", nsqlookupd=nsqlookupds, threads=4)
    consumer.add_handler(bill)
    report = consumer.run()  # until SIGTERM or Ctrl-C; then handles the messages that it has
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["127.0.0.1:4161"]))
