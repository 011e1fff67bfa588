"""What nsqd is about: topics that copy messages to channels that balance them over subscribers.

Synchronous and single-threaded; time comes from a ``Clock``, chance from a function. Knows no socket, event
loop or protocol, so every behaviour can be tested by calling it.
"""
