"""All ways to publish:  python examples/producer.py 127.0.0.1:4150 [127.0.0.1:5150 …]

Create one producer and share it among all threads. With several nsqds each message goes to one of them, or to
another if that one cannot take it.
"""

from __future__ import annotations

import logging
import sys

import nsq


def publish(producer: nsq.Producer) -> None:
    # Returns when an nsqd has confirmed the message.
    producer.publish("orders", b'{"order": 1}')

    # Many messages at once to one nsqd: much faster than one by one.
    producer.multi_publish("orders", [b'{"order": %d}' % number for number in range(2, 102)])

    # Deliver after 30 seconds. The call takes at most 2 seconds.
    producer.publish("orders", b'{"reminder": 1}', defer=30.0, timeout=2.0)

    # Do not wait for each: the futures have the results.
    futures = [producer.publish_async("orders", b'{"order": %d}' % number) for number in range(102, 202)]
    for future in futures:
        future.result()


def main(addresses: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING)
    with nsq.Producer(*addresses) as producer:
        try:
            publish(producer)
        except nsq.PublishUncertain as error:
            print(f"may be stored: {error}")
            return 2
        except nsq.PublishFailed as error:
            print(f"not stored: {error}")
            return 1
        for connection in producer.stats().connections:
            print(f"{connection.address}: {connection.published} messages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["127.0.0.1:4150"]))
