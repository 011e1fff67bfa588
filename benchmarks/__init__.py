"""Side by side with others: ``python -m benchmarks`` runs everything, ``python -m benchmarks daemon -k pub
--quick`` some of it.

``comparison`` says what is compared and judges it, ``rounds`` runs it, ``report`` shows it and ``processes``
starts what takes part; each suite (``daemon``) gives its comparisons. All contenders of a comparison run in
turns, on one machine, in one run, and only their ratios are judged: figures of two runs or two machines say
little about each other.
"""
