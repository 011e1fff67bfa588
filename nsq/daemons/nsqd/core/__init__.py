"""The core of nsqd: topics copy messages to channels, channels balance them over subscribers.

Synchronous and single-threaded; time comes from a ``Clock``, random numbers from a function. Knows no socket,
event loop or protocol, so tests can call everything directly.

Where a message waits, from its publication to its FIN. Read this first; then ``topic.py``, ``channel.py``,
``storage/memory_first.py``, ``storage/durable.py`` and ``disk/queue.py``, in this order. For deferred
messages, read ``storage/deferred.py`` after them.

**Four layers.** Each knows only the one below it.

    Topic        which channels get the message, and when
    Channel      which subscriber gets it, when it times out, when it is due
    Backlog      the queue in which messages of one topic or channel wait: in memory, on disk, or both
    DiskQueue    the part of a backlog that is in files: records, read and committed by position

A topic and each of its channels have a backlog of their own, and so a DiskQueue of their own.

**The usual way.** A topic *flows* when it has started (it knows the channels that nsqlookupd has for it), is
not paused and has a channel. Then ``Topic.put`` gives the messages of a publish to the backlog of every
channel, and keeps none. (With more than 200 channels it keeps them, and releases them as described below, to
some channels at a time.) ``Channel.pump`` takes messages from its backlog and gives them to subscribers with
room. A FIN calls ``Backlog.finished``; a REQ or a timeout calls ``put_back``, which appends.

**When the topic does not flow,** messages wait in the topic's own backlog. When it flows again, it *releases*
them: it takes some thousand from its backlog, makes a ``Portion`` of them, and gives each channel its share;
then other clients have their turn, and the next portion follows. Messages that are published meanwhile wait
behind, in the same backlog, so the order is kept. If too many do (``Topic.crowded``), the sessions and HTTP
requests that publish wait. A channel that is created during a release gets only what comes after its creation
(``Topic._late``, ``Portion._late``). After a kill, a durable topic releases again what it had not committed;
a channel ignores messages that it has deferred (``Deferred.repeated``).

**When a channel's disk is full,** its ``put`` raises StorageFailed, and a publisher gets the error. If
channels before it have the messages already, the error does not say that they are not stored
(``PartlyStored``), and the topic asks the full channel first from then on. But the messages of a portion were
accepted long ago: the channel keeps its share in memory (``hold_in_memory``), up to a limit, so that
consumers can empty the disk. The topic's backlog still has such messages, also if the topic is emptied
(``clear_waiting``), and forgets them when all channels with a copy only in memory have finished it
(``Portion._memory_only``). Beyond the limit the portion stays in ``Topic._portion``, and is tried again
later.

**A message that is deferred** waits beside its channel's backlog, in the channel's ``Deferred``, and enters
the backlog when it is due (``Backlog.put_due``). On a full disk a durable backlog keeps it in memory only, up
to the same limit, and ``Deferred`` on disk until it is finished. While the topic does not flow, it waits in
the topic's backlog like any other, which knows its due time.

**Three kinds of backlogs,** with one interface (``backlog.py``):

    MemoryBacklog, EphemeralBacklog    only memory, for tests and for ephemeral topics and channels
    MemoryFirstBacklog                 as Go's nsqd: --mem-queue-size messages in memory, the others on disk.
                                       What is taken from disk is committed at once: a kill loses what is in
                                       memory or in flight, a stop writes it to disk
    DurableBacklog                     --durable: every message is on disk until it is finished. It remembers
                                       the position of each taken record (``_entries``), and moves the commit
                                       point up to the oldest unfinished one. An unfinished message that holds
                                       the commit point back for too long is written again at the end

**Three positions of a DiskQueue,** each a file and an offset: *committed* ≤ *read* ≤ *written*. A restart
begins at the committed one; files before it are removed. A DiskQueue writes but does not sync: ``sync_job``
returns a job for another thread, and ``storage/committer.py`` runs the jobs of all queues in rounds, so that
one fsync serves all publishes that came before it.

**Who waits for what.** Without --durable a publisher gets OK when its messages are in the backlogs. With it,
the session holds the OK until the next round of syncs has ended (``session/stream.py``).
"""
