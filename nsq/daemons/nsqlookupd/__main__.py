"""``python -m nsq.daemons.nsqlookupd``"""

from __future__ import annotations

import sys

from nsq.daemons.nsqlookupd.main import main

sys.exit(main())
