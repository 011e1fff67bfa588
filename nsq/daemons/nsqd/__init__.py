"""nsqd: the daemon that receives, queues and delivers messages.

core/     topics, channels and their subscribers: synchronous, knows no socket, loop or protocol
session/  one client's V2 connection: bytes in, bytes out
storage/  and disk/ keep messages in files
http.py   the HTTP API; daemon.py starts and stops all of these, connection.py moves a client's bytes
"""
