"""Finds nsqds through nsqlookupd, for consumers and producers."""
