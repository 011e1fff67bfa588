"""The storage of nsqd: backlogs of topics and channels on disk, their fsyncs, and the list of topics.

storage.py        opens the queues, and knits together the parts below
queues.py         the open queues
memory_first.py   keeps messages in memory, and on disk what does not fit, as Go's nsqd does
durable.py        writes every message to disk first and keeps it until it is finished
dues.py           due times of deferred messages that wait in a topic, which has no channel yet
deferred.py       the deferred messages of a channel
deferred_files.py their files
deferred_file.py  one of them
choosing.py       after a kill: which record of a message counts
rounds.py         what each round of syncs covers
committer.py      runs the rounds: one fsync for all writes before it
health.py         whether the disk takes messages
stopping.py       what a stop writes, and how far it is
directory.py      the data directory: its lock, and what must not be in it
roster.py         the list of topics and channels
ids.py            which message ids may be made

The docstring of ``nsq.daemons.nsqd.core`` explains how topics, channels, backlogs and files fit together.
"""
