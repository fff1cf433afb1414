"""The transactional outbox: records put in the transaction of the data they tell of, then handled
in order per key. `writers` puts records, `stores` keeps them, the relay hands them to handlers, and
`publishers` are ready-made handlers for brokers and webhooks.
"""

from pollwise.outbox.outbox import Outbox, OutboxRunOptions
from pollwise.outbox.records import NewRecord, Record
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.urls import open_store

__all__ = ["NewRecord", "Outbox", "OutboxRunOptions", "OutboxStore", "Record", "open_store"]
