"""Defects of the past as patches: can the simulation find them? ``python -m tests.simulation.defects``."""
