"""Other people's clients under the loads of benchmarks/client, each a program for an interpreter of its own.

They run as plain files, so that this directory is on their path and ours is not: one of them is a module
``nsq`` too. Nothing here may import anything of this package.
"""
