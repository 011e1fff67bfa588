"""The program nsqlookupd. aiohttp is imported only once the flags are known to ask for a server."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.logs import DaemonLog
from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
from nsq.daemons.process import Daemon, require_server_extra, run
from nsq.flags import parse_or_exit

PROGRAM = "nsqlookupd"
VERSION = f"{PROGRAM} v{COMPATIBLE_VERSION} (built w/python{platform.python_version()})"


def main(argv: Sequence[str] | None = None) -> int:
    parsed = parse_or_exit(NsqlookupdOptions, argv, prog=PROGRAM, version=VERSION)
    require_server_extra(PROGRAM)
    options = parsed.options
    log = DaemonLog(options.log_prefix, "debug" if options.verbose else options.log_level)
    for warning in parsed.warnings:
        log.warning("%s", warning)
    log.info("%s", VERSION)

    def make_daemon() -> Daemon:
        from nsq.daemons.nsqlookupd.daemon import Nsqlookupd

        return Nsqlookupd(options, log=log)

    return run(make_daemon, log)
