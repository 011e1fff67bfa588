"""``nsq_relay``."""
