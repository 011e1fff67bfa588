"""nsqd: the daemon that receives, queues and delivers messages.

core/       topics, channels and who subscribes to them: synchronous, knows no socket, loop or protocol
session/    one client's V2 conversation: bytes in, bytes out
http/       the HTTP API
daemon.py   the asyncio shell that carries bytes between sockets and all of these
"""
