"""One connection to one nsqd: ``Conn`` has the two loops, ``session`` what is in flight, ``handshake`` its
beginning, ``forks`` what becomes of it in a child process.
"""
