"""Other clients under the loads of benchmarks/client. Each is a program for its own Python environment.

They run as plain files, so that this directory is on their path and ours is not, because the module of one is
called ``nsq`` too. They must not import this package.
"""
