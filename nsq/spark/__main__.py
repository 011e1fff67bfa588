"""``python -m nsq.spark …`` is ``nsq-spark …``; spark-submit is given this very file."""

from __future__ import annotations

import sys

from nsq.spark.cli import main

if __name__ == "__main__":
    sys.exit(main())
