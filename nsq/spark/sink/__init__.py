"""``df.write.format("nsq")``: publishing from Spark, every row's ``body`` a message."""
