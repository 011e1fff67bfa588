"""Messages on disk, in the files of the Go nsqd: a directory either program can carry on with.

Synchronous; knows no event loop, socket, topic or clock. ``queue`` is the door for one queue's records,
``directory`` for what all queues of one nsqd share, ``record`` says what a record holds. What a sync leaves
on disk survives a power cut; the only part that may run in another thread is a ``SyncJob``.
"""
