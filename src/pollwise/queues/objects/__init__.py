"""A queue in a bucket: S3, Google Cloud Storage, Azure Blob Storage, or a folder. It needs
create-only writes and nothing else; `names` explains the layout.
"""

from pollwise.queues.objects.queue import ObjectQueue

__all__ = ["ObjectQueue"]
