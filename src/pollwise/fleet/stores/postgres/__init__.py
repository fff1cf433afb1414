"""A fleet's state in Postgres, shared by several nodes."""
