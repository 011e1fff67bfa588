"""The daemons: nsqd, nsqlookupd and nsqadmin, and what they share.

They import errors, wire, http and flags, never the client. aiohttp is imported by ``httpd`` alone.
"""

from __future__ import annotations

# The release of the Go daemons whose answers ours equal: by it clients and nsqadmin decide what to ask for.
COMPATIBLE_VERSION = "1.3.0"
