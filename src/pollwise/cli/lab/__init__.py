"""`pollwise lab …`."""
