"""Publishing from Spark: each row's ``body`` becomes a message.

    (df.selectExpr("to_json(struct(*)) AS body")
       .write.format("nsq").option("nsqd", "10.0.0.2:4150").option("topic", "orders")
       .mode("append").save())

At least once: what is published cannot be taken back. A task that is retried, and a batch that is run again
after a crash, publish their rows again; so may a publish that nsqd did not answer.

Columns: ``body`` (binary or string); ``topic``, unless the option ``topic`` is given, which comes first;
``deferMs``, milliseconds until the message is delivered, null for now. Others are left alone.
"""
