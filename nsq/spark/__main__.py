"""Runs ``nsq-spark`` as ``python -m nsq.spark …``; also the file that spark-submit gets."""

from __future__ import annotations

import sys

from nsq.spark.cli import main

if __name__ == "__main__":
    sys.exit(main())
