"""An outbox in the user's own SQLite file."""
