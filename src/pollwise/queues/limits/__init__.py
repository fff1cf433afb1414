"""Limits: how many jobs of a kind may run at a time, or start in a period. `record` is a note."""
