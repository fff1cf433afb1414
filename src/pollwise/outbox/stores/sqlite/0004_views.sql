-- Version 4: dead records and blocked keys by index, so that views of a full outbox are quick.

CREATE INDEX pollwise_outbox_dead ON pollwise_outbox (outbox, seq) WHERE state = 2;

CREATE INDEX pollwise_outbox_keys_blocked ON pollwise_outbox_keys (outbox, "key") WHERE state = 3;
