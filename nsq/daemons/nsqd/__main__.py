"""The program nsqd, also as ``python -m nsq.daemons.nsqd``.

The other modules are imported while the daemon's signals are blocked: an early signal waits for its handler.
aiohttp is imported only when the daemon is made, so that --help and --version work without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsq.threads.stop_signals import daemon_signals_blocked

if TYPE_CHECKING:
    from nsq.daemons.nsqd.options import NsqdOptions
    from nsq.daemons.serve.logs import DaemonLog
    from nsq.daemons.serve.process import Daemon


def main(argv: Sequence[str] | None = None) -> int:
    with daemon_signals_blocked(for_good=argv is None):
        from nsq.daemons.nsqd.options import NsqdOptions
        from nsq.daemons.serve.process import run_program

        return run_program("nsqd", NsqdOptions, _make_daemon, argv)


def _make_daemon(options: NsqdOptions, log: DaemonLog) -> Daemon:
    from nsq.daemons.nsqd.daemon import Nsqd

    return Nsqd(options, log=log)


if __name__ == "__main__":
    sys.exit(main())
