"""`pollwise poll`: sources in a shell."""
