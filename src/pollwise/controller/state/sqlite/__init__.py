"""The controller's state in a SQLite file."""
