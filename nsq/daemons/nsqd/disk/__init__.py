"""Messages on disk, in the file format of Go's nsqd: either program can open the other's directory.

Synchronous; knows no event loop, socket, topic or clock. ``queue`` has the interface to one queue's records,
``layout`` defines the names and contents of files. Synced records survive a power cut; only a ``SyncJob`` and
a ``peek_job`` may run in another thread, and large files are removed in one.
"""
