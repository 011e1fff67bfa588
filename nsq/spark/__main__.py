"""Runs ``nsq-spark`` as ``python -m nsq.spark …``; also the file that spark-submit gets."""

from __future__ import annotations

import sys

from nsq.threads.stop_signals import hold_signals

if __name__ == "__main__":
    hold_signals()  # before the other imports

    from nsq.spark.cli import main

    sys.exit(main())
