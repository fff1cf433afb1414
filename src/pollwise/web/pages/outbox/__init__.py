"""The pages of outboxes: one outbox with its blocked keys, records and relays, and one record."""
