"""``python -m nsq``: the program ``nsq``."""

from __future__ import annotations

import sys

from nsq.tools.front_door import main

sys.exit(main())
