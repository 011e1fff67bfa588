"""One connection to one nsqd: ``Conn`` has the two loops, ``session`` the messages in flight, ``handshake``
opens the connection, ``forks`` drops it in a forked child.
"""
