"""Limits of kinds: `room` and `rates`, whose turn it is, the rest of a queue, and changes."""
