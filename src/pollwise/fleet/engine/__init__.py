"""The engine of a fleet: which target is polled when, what its state is, and what survives
a restart.
"""
