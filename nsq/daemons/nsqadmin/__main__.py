"""The program nsqadmin, also as ``python -m nsq.daemons.nsqadmin``.

Signals that come during the imports are held back until the daemon has handlers for them. aiohttp is imported
only when the daemon is made, so that --help and --version work without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsq.threads.stop_signals import hold_signals

if TYPE_CHECKING:
    from nsq.daemons.nsqadmin.options import NsqadminOptions
    from nsq.daemons.serve.logs import DaemonLog
    from nsq.daemons.serve.process import Daemon


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None:
        hold_signals()
    from nsq.daemons.nsqadmin.options import NsqadminOptions
    from nsq.daemons.serve.process import run_program

    return run_program("nsqadmin", NsqadminOptions, _make_daemon, argv)


def _make_daemon(options: NsqadminOptions, log: DaemonLog) -> Daemon:
    from nsq.daemons.nsqadmin.daemon import Nsqadmin

    return Nsqadmin(options, log=log)


if __name__ == "__main__":
    sys.exit(main())
