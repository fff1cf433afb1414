"""The transactional outbox: records are put in the transaction of the data they describe, and then
handled in order per key. `writers` put records, `stores` keep them, the relay calls handlers with
them, and `publishers` are ready-made handlers for brokers and webhooks.
"""

from pollwise.outbox.outbox import Outbox
from pollwise.outbox.records import NewRecord, Record
from pollwise.outbox.relay import OutboxRunOptions
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.urls import open_store

__all__ = ["NewRecord", "Outbox", "OutboxRunOptions", "OutboxStore", "Record", "open_store"]
