"""Benchmarks against other programs: ``python -m benchmarks`` runs everything, ``python -m benchmarks daemon
-k pub --quick`` a part.

``comparison`` defines and judges comparisons, ``rounds`` runs them, ``report`` shows them, and ``processes``
starts servers and drivers. Each suite, such as ``daemon``, has its comparisons. All contenders of a
comparison run in turns, in one run on one machine. Only their ratios are judged, because figures of two runs
or machines cannot be compared.
"""
