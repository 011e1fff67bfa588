"""Publishing: ``Producer`` and its reports."""
