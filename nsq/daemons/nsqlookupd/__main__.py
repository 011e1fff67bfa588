"""The program nsqlookupd, also as ``python -m nsq.daemons.nsqlookupd``.

aiohttp is imported only when the daemon is made, so that --help and --version work without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsq.daemons.logs import DaemonLog
from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
from nsq.daemons.process import Daemon, run_program


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("nsqlookupd", NsqlookupdOptions, _make_daemon, argv)


def _make_daemon(options: NsqlookupdOptions, log: DaemonLog) -> Daemon:
    from nsq.daemons.nsqlookupd.daemon import Nsqlookupd

    return Nsqlookupd(options, log=log)


if __name__ == "__main__":
    sys.exit(main())
