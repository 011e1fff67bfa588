"""An optional app: stores the results of tasks in the database."""
