"""The command-line tools, one file each, with the names, flags, output and exit statuses of Go's.

They are built on ``Consumer``, ``Producer`` and ``nsq.http``; ``program.py`` has what they share.
"""
