"""Starts everything, runs the demonstration, prints a summary, and leaves only the archive."""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import time
from contextlib import ExitStack, suppress

from nsq.testing import DaemonFailed

from . import pipelines
from .cluster import Cluster
from .load import Load
from .play import Play
from .screen import Screen
from .shop import STEPS
from .signals import Signals
from .summary import summarize


def main() -> int:
    options = read_arguments()
    # The client logs lost connections, which the demonstration causes on purpose.
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
    signals = Signals()
    signals.catch()
    screen = Screen(sys.stdout)
    try:
        return run(options, screen, signals)
    except KeyboardInterrupt:
        screen.clear()
        screen.say("stopped; nothing is left behind")
        return 128 + (signals.number or signal.SIGINT)
    except (DaemonFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="A web shop on a whole NSQ of its own: publishes, consumes, survives a crash, archives.",
    )
    parser.add_argument(
        "--orders", type=positive, default=60_000, help="of four events each (default: %(default)s)"
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="go on with a light load until Ctrl-C, and leave no files",
    )
    parser.add_argument(
        "--spark",
        action="store_true",
        help="end in the archive and metrics pipelines; needs Java 17 or later",
    )
    return parser.parse_args()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def run(options: argparse.Namespace, screen: Screen, signals: Signals) -> int:
    cluster = Cluster(*(pipelines.CHANNELS if options.spark else ()))
    with ExitStack() as closing:
        closing.callback(stop, cluster, screen)
        try:
            # With --keep nothing stays when the program ends.
            leftovers = closing if options.keep else ExitStack()
            with screen.awake():
                start(cluster, options.keep, screen, signals)
                status = perform(cluster, options.orders, screen, signals, leftovers)
                if options.spark:
                    status = max(status, continue_on_spark(cluster, options.orders, screen, leftovers))
            if options.keep:
                keep(cluster, screen, signals, closing)
        finally:
            signals.ignore()
    return status


def start(cluster: Cluster, keep: bool, screen: Screen, signals: Signals) -> None:
    with signals.held():
        cluster.start()
        if keep:
            cluster.show()
    screen.say("\n".join([*cluster.describe(), ""]))


def stop(cluster: Cluster, screen: Screen) -> None:
    with screen.awake():
        cluster.stop()


def perform(cluster: Cluster, orders: int, screen: Screen, signals: Signals, leftovers: ExitStack) -> int:
    """Run the demonstration; return the exit status. Leaves only a complete archive, which ``leftovers``
    deletes.
    """
    with ExitStack() as interrupted:
        with signals.held():
            play = Play(cluster, screen, signals, orders)
            interrupted.callback(play.abandon)
        screen.say("\n".join([*play.describe(), ""]))
        play.perform()
        with signals.held():
            interrupted.pop_all()
            leftovers.callback(play.archive.discard)
            play.close()
            screen.say("\n".join(summarize(play)))
    return 1 if play.lost else 0


def continue_on_spark(cluster: Cluster, orders: int, screen: Screen, leftovers: ExitStack) -> int:
    last_act = pipelines.Pipelines(cluster, screen, orders * len(STEPS))
    try:
        last_act.run()
    except BaseException:
        shutil.rmtree(last_act.directory)
        raise
    leftovers.callback(shutil.rmtree, last_act.directory)
    return 1 if last_act.lost else 0


def keep(cluster: Cluster, screen: Screen, signals: Signals, closing: ExitStack) -> None:
    """Publish and consume a little until a signal, which here is the normal end."""
    with suppress(KeyboardInterrupt):  # a signal may come as soon as this is on the screen
        with signals.held():
            load = Load(cluster.tcp_addresses, cluster.nsqlookupd.http_address)
            closing.callback(load.close)
        lines = ["", "everything runs until Ctrl-C, with a light load; then the archive is deleted too:"]
        screen.say("\n".join([*lines, *cluster.describe()]))
        while True:  # not signal.pause: a signal that the system gives to another thread would not end that
            time.sleep(0.5)
