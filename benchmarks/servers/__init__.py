"""Servers to compare nsqd with. Each is a program of its own and imports nothing of the package."""
