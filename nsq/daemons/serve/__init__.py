"""The code that the daemons share. It knows nothing of nsqd, nsqlookupd and nsqadmin:

process.py        a daemon as a program: flags, event loop, signals, systemd
logs.py           its log
listen.py         addresses, and listening on them
routes.py         requests, replies and errors over HTTP, without a network
httpd.py          serves routes, with aiohttp
http_client.py    sends HTTP requests
sites.py          refuses requests of other web sites
bodies.py         a limit on unfinished bodies of all clients together
slices.py         long work on the event loop, a few milliseconds at a time
worker_thread.py  blocking work in a thread of its own
debug.py          /debug/: stacks, allocations
"""
