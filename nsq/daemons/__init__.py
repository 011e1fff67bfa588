"""The daemons: nsqd, nsqlookupd and nsqadmin, and ``serve``, which they share.

They import errors, wire, http and flags, never the client. Only ``serve.httpd`` imports aiohttp.
"""

from __future__ import annotations

# The release of Go's daemons that ours match. Clients and nsqadmin decide by this version what to ask for.
COMPATIBLE_VERSION = "1.3.0"
