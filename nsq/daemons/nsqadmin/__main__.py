"""The program nsqadmin, also as ``python -m nsq.daemons.nsqadmin``.

aiohttp is imported only when the daemon is made, so that --help and --version work without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nsq.daemons.logs import DaemonLog
from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.process import Daemon, run_program


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("nsqadmin", NsqadminOptions, _make_daemon, argv)


def _make_daemon(options: NsqadminOptions, log: DaemonLog) -> Daemon:
    from nsq.daemons.nsqadmin.daemon import Nsqadmin

    return Nsqadmin(options, log=log)


if __name__ == "__main__":
    sys.exit(main())
