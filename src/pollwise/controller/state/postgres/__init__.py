"""The controller's state in Postgres."""
