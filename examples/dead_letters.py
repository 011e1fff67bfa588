"""Dead letters: what to do with messages that fail repeatedly.

    python examples/dead_letters.py 127.0.0.1:4150

After ``max_attempts`` the consumer gives a message up. Here it publishes the message to another topic, where
you can inspect it; ``nsq redrive`` sends it back. ``give_up=nsq.DeadLetterFile(path)`` writes to a file
instead; any function of a message works too. The message is finished only after that has succeeded.
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

    consumer = nsq.Consumer(
        "numbers",
        "division",
        nsqd=nsqd,
        max_attempts=3,
        dead_letters="numbers.dead",
        default_requeue_delay=0.1,  # default 90 s, times the attempts so far
        max_backoff_duration=0.0,  # one bad message must not slow down the others
    )
    dead = nsq.Consumer("numbers.dead", "people", nsqd=nsqd).add_handler(look)
    with consumer.add_handler(divide), dead, nsq.Producer(nsqd) as producer:
        producer.multi_publish("numbers", [b"4", b"0", b"8"])
        return 0 if done.wait(30.0) else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} HOST:PORT")
    sys.exit(main(sys.argv[1]))
