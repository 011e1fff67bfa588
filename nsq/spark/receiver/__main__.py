"""``python -m nsq.spark.receiver``: started by a ``Crew``, not by people, who have ``nsq-spark receive``."""

from __future__ import annotations

import sys

from nsq.spark.receiver.process import main

if __name__ == "__main__":
    sys.exit(main())
