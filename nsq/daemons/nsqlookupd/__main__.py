"""The program nsqlookupd, also as ``python -m nsq.daemons.nsqlookupd``.

Signals that come during the imports are held back until the daemon has handlers for them. aiohttp is imported
only when the daemon is made, so that --help and --version work without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsq.threads.stop_signals import hold_signals

if TYPE_CHECKING:
    from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
    from nsq.daemons.serve.logs import DaemonLog
    from nsq.daemons.serve.process import Daemon


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None:
        hold_signals()
    from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
    from nsq.daemons.serve.process import run_program

    return run_program("nsqlookupd", NsqlookupdOptions, _make_daemon, argv)


def _make_daemon(options: NsqlookupdOptions, log: DaemonLog) -> Daemon:
    from nsq.daemons.nsqlookupd.daemon import Nsqlookupd

    return Nsqlookupd(options, log=log)


if __name__ == "__main__":
    sys.exit(main())
