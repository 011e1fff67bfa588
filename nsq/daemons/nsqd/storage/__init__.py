"""The storage of nsqd: backlogs of topics and channels on disk, their fsyncs, and the list of topics.

memory_first.py  keeps messages in memory, and on disk what does not fit, as Go's nsqd does
durable.py       writes every message to disk first and keeps it until it is finished
committer.py     syncs in rounds: one fsync for all writes before it
storage.py       the data directory as a whole, and its health

The docstring of ``nsq.daemons.nsqd.core`` explains how topics, channels, backlogs and files fit together.
"""
