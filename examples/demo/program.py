"""Starts everything, runs the demonstration, prints a summary, and leaves only the archive."""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
from contextlib import ExitStack, suppress

from nsq.testing import DaemonFailed

from . import pipelines
from .cluster import Cluster
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
        "--keep", action="store_true", help="leave the daemons running at the end, until Ctrl-C"
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
        closing.callback(cluster.stop)
        try:
            with signals.held():
                cluster.start()
            screen.say("\n".join([*cluster.describe(), ""]))
            status = perform(cluster, options.orders, screen, signals)
            if options.spark:
                status = max(status, continue_on_spark(cluster, options.orders, screen))
            if options.keep:
                keep(cluster, screen)
        finally:
            signals.ignore()
    return status


def perform(cluster: Cluster, orders: int, screen: Screen, signals: Signals) -> int:
    """Run the demonstration; return the exit status. Leaves only a complete archive behind."""
    with ExitStack() as interrupted:
        with signals.held():
            play = Play(cluster, screen, signals, orders)
            interrupted.callback(play.abandon)
        screen.say("\n".join([*play.describe(), ""]))
        play.perform()
        with signals.held():
            interrupted.pop_all()
            play.close()
            screen.say("\n".join(summarize(play)))
    return 1 if play.lost else 0


def continue_on_spark(cluster: Cluster, orders: int, screen: Screen) -> int:
    last_act = pipelines.Pipelines(cluster, screen, orders * len(STEPS))
    try:
        last_act.run()
    except BaseException:
        shutil.rmtree(last_act.directory)
        raise
    return 1 if last_act.lost else 0


def keep(cluster: Cluster, screen: Screen) -> None:
    """Wait for a signal, which here is the normal end."""
    page = cluster.show()
    with suppress(KeyboardInterrupt):  # a signal may come as soon as this is on the screen
        screen.say("\n".join(["", "everything runs until Ctrl-C:", *cluster.describe(), "", page]))
        signal.pause()
