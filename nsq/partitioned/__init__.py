"""The smart client for partitioned, ordered and traced NSQ."""
