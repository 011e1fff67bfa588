"""The program nsqd, also as ``python -m nsq.daemons.nsqd``.

Signals that come during the imports are held back until the daemon has handlers for them. aiohttp is imported
only when the daemon is made, so that --help and --version work without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsq.threads.stop_signals import hold_signals

if TYPE_CHECKING:
    from nsq.daemons.nsqd.options import NsqdOptions
    from nsq.daemons.serve.logs import DaemonLog
    from nsq.daemons.serve.process import Daemon


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None:
        hold_signals()
    from nsq.daemons.nsqd.options import SIGTERM_DRAINS, NsqdOptions
    from nsq.daemons.serve.process import run_program

    def drains_on_sigterm(options: NsqdOptions) -> bool:
        return options.sigterm_mode == SIGTERM_DRAINS

    return run_program("nsqd", NsqdOptions, _make_daemon, argv, drains_on_sigterm=drains_on_sigterm)


def _make_daemon(options: NsqdOptions, log: DaemonLog) -> Daemon:
    from nsq.daemons.nsqd.daemon import Nsqd

    return Nsqd(options, log=log)


if __name__ == "__main__":
    sys.exit(main())
