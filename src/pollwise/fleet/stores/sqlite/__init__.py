"""A fleet's state in a SQLite file, for one node."""
