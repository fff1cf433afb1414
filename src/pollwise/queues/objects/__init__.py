"""A queue in a bucket: S3, Google Cloud Storage, Azure Blob Storage, or a folder. It needs only
create-only writes. `queue` explains the protocol, `names` the layout.
"""

from pollwise.queues.objects.queue import ObjectQueue

__all__ = ["ObjectQueue"]
