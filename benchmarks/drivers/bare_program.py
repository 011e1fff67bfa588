"""The bare programs, with the structure of ours and no error handling: ``bare_program LOAD ARGUMENTS``."""

from __future__ import annotations

from benchmarks.drivers import bare_consumer, bare_publisher
from benchmarks.peers import work

if __name__ == "__main__":
    work.main({**bare_publisher.LOADS, **bare_consumer.LOADS})
