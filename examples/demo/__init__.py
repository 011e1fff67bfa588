"""A small web shop on a whole NSQ of its own: ``make run``, or ``python -m examples.demo``.

Read ``shop`` to see how to publish so that nothing is lost, ``services`` to see how to consume, ``cluster``
for daemons in a program or test of your own, and ``play`` for what happens when one of them is killed.
"""
