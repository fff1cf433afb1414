"""`pollwise queue …`: put jobs, look at them, cancel them, and retry or drop the dead ones."""
