"""``python -m examples.demo``: what it does is in ``program``."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    # Importing takes a moment, in which nothing has been started: Ctrl-C ends it there and then.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .program import main

    sys.exit(main())
