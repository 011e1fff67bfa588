"""nsqd's HTTP API: the table of routes, and handlers that know requests and the core but no network."""
