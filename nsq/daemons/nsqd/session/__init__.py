"""One client's V2 connection: bytes in, bytes out; knows no socket and no event loop."""
