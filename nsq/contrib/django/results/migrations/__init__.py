"""Migrations of the results app."""
