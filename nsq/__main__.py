"""``python -m nsq``: the program ``nsq``."""

from __future__ import annotations

import sys

from nsq.threads.stop_signals import hold_signals

if __name__ == "__main__":
    hold_signals()  # before the other imports

    from nsq.tools.front_door import main

    sys.exit(main())
