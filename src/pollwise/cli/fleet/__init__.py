"""`pollwise fleet …`."""
