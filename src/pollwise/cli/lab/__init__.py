"""`pollwise lab …`: its commands, and the tables that they print."""
