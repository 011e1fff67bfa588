"""``python -m examples.demo``: runs ``program``."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    # Nothing is started during the imports, so Ctrl-C ends the program at once.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .program import main

    sys.exit(main())
