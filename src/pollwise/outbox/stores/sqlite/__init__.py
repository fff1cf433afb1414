"""The outbox in the user's own SQLite file: `store` is async, `calls` has the calls that its thread
makes.
"""
