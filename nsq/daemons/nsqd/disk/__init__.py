"""Messages on disk, in the files of the Go nsqd: a directory either program can carry on with.

Synchronous; knows no event loop, socket, topic or clock. ``queue`` is the door for one queue's records,
``layout`` says what the files are called and hold. What a sync leaves on disk survives a power cut; the only
part that may run in another thread is a ``SyncJob``.
"""
