"""Where an outbox keeps its records: the contract in `base`, one folder per database."""
