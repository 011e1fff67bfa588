"""Reading with ``spark.read``: ``format("nsq")`` looks at messages, ``format("nsq_stats")`` at queues."""
