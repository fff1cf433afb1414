"""An outbox in the user's own Postgres database."""
