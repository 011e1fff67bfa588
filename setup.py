"""Everything is declared in setup.cfg; this file lets setuptools (and old pips) find it."""

from __future__ import annotations

from setuptools import setup

setup()
