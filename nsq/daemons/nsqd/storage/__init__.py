"""The storage of nsqd: backlogs of topics and channels on disk, their syncs, and the list of what exists.

memory_first.py  memory first, disk for what does not fit, as Go's nsqd does it
durable.py       disk first: nothing is forgotten before it is finished
committer.py     one fsync for all that arrived meanwhile
storage.py       the data directory as a whole, and its health
"""
