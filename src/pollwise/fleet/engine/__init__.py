"""The engine of a fleet decides which target is polled when, tracks the state of each target, and
saves what must survive a restart.
"""
