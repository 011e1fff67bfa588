"""Looking into a running daemon: its stacks, where its time goes, what it allocates.

stacks.py, sampling.py and allocations.py look, and know no HTTP; endpoints.py serves what they see.
"""
