"""Limits: how many jobs of a kind may run at a time, or start in a time. `record` is their note."""
