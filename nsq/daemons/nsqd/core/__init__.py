"""The core of nsqd: topics copy messages to channels, channels balance them over subscribers.

Synchronous and single-threaded; time comes from a ``Clock``, chance from a function. Knows no socket, event
loop or protocol, so every behaviour can be tested by calling it.
"""
