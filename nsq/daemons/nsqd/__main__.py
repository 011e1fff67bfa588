"""The program nsqd, also as ``python -m nsq.daemons.nsqd``.

aiohttp is imported only when the daemon is made, so that --help and --version work without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsq.daemons.logs import DaemonLog
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.process import Daemon, run_program


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("nsqd", NsqdOptions, _make_daemon, argv)


def _make_daemon(options: NsqdOptions, log: DaemonLog) -> Daemon:
    from nsq.daemons.nsqd.daemon import Nsqd

    return Nsqd(options, log=log)


if __name__ == "__main__":
    sys.exit(main())
