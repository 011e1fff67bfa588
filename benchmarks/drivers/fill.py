"""Fills a topic: ``fill PORT COUNT BODY BATCH``; prints messages a second."""

from __future__ import annotations

import sys

from benchmarks.drivers import publish

if __name__ == "__main__":
    port, count, size, batch = map(int, sys.argv[1:])
    print(publish.main(port, "mpub", count, size, batch))
