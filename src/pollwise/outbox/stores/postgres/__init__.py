"""The outbox in the user's own Postgres database: the store, and the SQL functions it calls."""
