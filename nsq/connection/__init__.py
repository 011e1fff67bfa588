"""One nsqd: ``endpoint`` dials it, loses it and dials again; ``conn`` is one connection with its two loops,
``session`` its messages in flight, and ``handshake`` opens it.
"""
