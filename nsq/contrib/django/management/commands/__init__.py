"""``nsq_consume``."""
