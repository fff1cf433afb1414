"""`pollwise serve …`."""
