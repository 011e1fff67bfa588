"""NSQ's protocols as pure functions of bytes, shared by the client and the daemons.

Nothing in here opens a socket, reads a clock, starts a thread or writes a log.
"""
