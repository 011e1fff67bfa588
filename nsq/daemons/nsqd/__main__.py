"""``python -m nsq.daemons.nsqd``"""

from __future__ import annotations

import sys

from nsq.daemons.nsqd.main import main

sys.exit(main())
