"""Load generators. Each is a program, so that it does not share the server's process or GIL.

They encode their input beforehand, and parse only the necessary parts of replies.
"""
