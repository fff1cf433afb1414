"""`pollwise outbox …`: run the relay, show records and relays, retry and drop."""
