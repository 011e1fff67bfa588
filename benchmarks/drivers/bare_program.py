"""The bare programs, of the shape of ours and without any care: ``bare_program LOAD ARGUMENTS``."""

from __future__ import annotations

from benchmarks.drivers import bare_consumer, bare_publisher
from benchmarks.peers import work

if __name__ == "__main__":
    work.main({**bare_publisher.LOADS, **bare_consumer.LOADS})
