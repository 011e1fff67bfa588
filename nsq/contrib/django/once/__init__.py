"""An optional app: its migration creates the table of ``nsq.contrib.once``."""
