"""One client's V2 conversation: bytes in, bytes out; knows no socket and no event loop."""
