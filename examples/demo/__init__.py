"""A small web shop on its own NSQ cluster: ``make run``, or ``python -m examples.demo``.

``shop`` shows how to publish without losses, ``services`` how to consume, ``cluster`` how to run daemons from
a program or test, and ``play`` what happens when one of them is killed.
"""
