"""The core of nsqd: topics copy messages to channels, channels balance them over subscribers.

Synchronous and single-threaded; time comes from a ``Clock``, random numbers from a function. Knows no socket,
event loop or protocol, so tests can call everything directly.
"""
