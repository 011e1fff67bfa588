"""Publishing: ``Producer``, and what it reports."""
