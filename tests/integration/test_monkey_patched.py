"""Everything works under gevent's monkey patching, with its deadlines; eventlet's is refused with a clear
error.
"""

from __future__ import annotations

import pytest

from nsq.testing import Nsqd
from tests.fakes.programs import run_python

PATIENCE = 60.0

UNDER_GEVENT = """
{imports}
import socket, sys, time, gevent

address = sys.argv[1]
with nsq.Producer(address) as producer:
    def publish(count):
        for _ in range(count):
            producer.publish("gevent", b"body")
    gevent.joinall([gevent.spawn(publish, 20) for _ in range(10)], raise_error=True)
    futures = [producer.publish_async("gevent", b"body") for _ in range(300)]
    assert producer.flush()
    assert all(future.exception(0) is None for future in futures)

# Deadlines: an nsqd that accepts and says nothing, one that is silent once it is warm, one that takes
# nothing.
with socket.create_server(("127.0.0.1", 0)) as silent:
    with nsq.Producer("127.0.0.1:%d" % silent.getsockname()[1]) as producer:
        started = time.monotonic()
        try:
            producer.publish("gevent", b"body", timeout=0.3)
        except nsq.PublishFailed:
            assert 0.25 < time.monotonic() - started < 5
        else:
            raise AssertionError("published to a silent server")
        assert producer.close(0.5)

handled = []
consumer = nsq.Consumer("gevent", "channel", nsqd=address, threads=4)
consumer.add_handler(lambda message: handled.append(message.body))
with consumer:
    deadline = time.monotonic() + 30
    while len(handled) < 500:
        assert time.monotonic() < deadline, len(handled)
        gevent.sleep(0.01)
    assert consumer.stop(5)
print("all of it")
"""

ORDERS = {
    "patched first": "from gevent import monkey; monkey.patch_all()\nimport nsq",
    "imported first": "import nsq\nfrom gevent import monkey; monkey.patch_all()",
}


@pytest.mark.parametrize("order", ORDERS)
def test_consumers_and_producers_work_under_gevent(order: str) -> None:
    with Nsqd(process=True) as nsqd:
        program = UNDER_GEVENT.format(imports=ORDERS[order])
        done = run_python("-W", "ignore", "-c", program, nsqd.tcp_address)
    assert (done.stdout, done.stderr, done.returncode) == ("all of it\n", "", 0)


def test_eventlet_is_refused() -> None:
    program = """
import eventlet; eventlet.monkey_patch()
import nsq
for make in (lambda: nsq.Producer("127.0.0.1:4150"), lambda: nsq.Consumer("t", "c", nsqd="127.0.0.1:4150")):
    try:
        make()
    except nsq.ConfigError as error:
        print(error)
"""
    done = run_python("-W", "ignore", "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("use plain threads or gevent") == 2
