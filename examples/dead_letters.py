"""What becomes of messages that fail again and again:

    python examples/dead_letters.py 127.0.0.1:4150

After ``max_attempts`` a message is given up: published to another topic here, where it can be looked at and
published again. ``nsq.DeadLetterFile(path)`` keeps them in a file instead; any function of a message will do.
Only when that has worked is the message finished.
"""

from __future__ import annotations

import logging
import sys
import threading

import nsq

log = logging.getLogger("division")


def divide(message: nsq.Message) -> None:
    log.info("1 / %s = %g", message.body.decode(), 1 / int(message.body))


def main(nsqd: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    done = threading.Event()

    def look(message: nsq.Message) -> None:
        log.info("dead: %s", message.body.decode())
        done.set()

    with nsq.Producer(nsqd) as producer:
        consumer = nsq.Consumer(
            "numbers",
            "division",
            nsqd=nsqd,
            max_attempts=3,
            give_up=nsq.DeadLetterTopic(producer, "numbers.dead"),
            default_requeue_delay=0.1,  # 90 s unless told otherwise, and more with every attempt
            max_backoff_duration=0.0,  # one bad message is no reason to slow down for all others
        )
        cemetery = nsq.Consumer("numbers.dead", "people", nsqd=nsqd).add_handler(look)
        with consumer.add_handler(divide), cemetery:
            producer.multi_publish("numbers", [b"4", b"0", b"8"])
            return 0 if done.wait(30.0) else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT")
    sys.exit(main(sys.argv[1]))
