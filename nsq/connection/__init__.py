"""One nsqd: ``endpoint`` dials it, loses it and dials again; ``conn`` is one connection with its two loops,
``deliveries`` its messages in flight, and ``handshake`` opens it.
"""
