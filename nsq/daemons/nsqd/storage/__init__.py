"""The storage of nsqd: backlogs of topics and channels on disk, their fsyncs, and the list of topics.

memory_first.py   keeps messages in memory, and on disk what does not fit, as Go's nsqd does
durable.py        writes every message to disk first and keeps it until it is finished
dues.py           due times of deferred messages that wait in a topic, which has no channel yet
deferred.py       the deferred messages of a channel
deferred_file.py  one of their files
committer.py      syncs in rounds: one fsync for all writes before it
storage.py        all backlogs together, and their health
directory.py      the data directory: its lock, and the list of topics

The docstring of ``nsq.daemons.nsqd.core`` explains how topics, channels, backlogs and files fit together.
"""
