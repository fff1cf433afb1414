"""Ready sources for `pollwise.poll`: each has a cursor that survives restarts, so that an item is
delivered at least once, and again only after a crash.

    async with pollwise.sources.Folder("inbox", cursor="sqlite:///cursors.db") as inbox:
        async for files in pollwise.poll(inbox, pollwise.Adaptive("1s", "30s")):
            ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pollwise.sources.base import Found, Source
    from pollwise.sources.bucket import Bucket, BucketObject
    from pollwise.sources.cursors import CursorStore, MemoryCursors, SqliteCursors
    from pollwise.sources.feed import Feed
    from pollwise.sources.folder import Folder, FolderFile
    from pollwise.sources.http_json import HttpJson
    from pollwise.sources.imap import ImapFolder, MailMessage
    from pollwise.sources.redis_stream import RedisStream, StreamEntry
    from pollwise.sources.sql import SqlRows
    from pollwise.sources.urls import SourceUrl, open_source

__all__ = [
    "Bucket",
    "BucketObject",
    "CursorStore",
    "Feed",
    "Folder",
    "FolderFile",
    "Found",
    "HttpJson",
    "ImapFolder",
    "MailMessage",
    "MemoryCursors",
    "RedisStream",
    "Source",
    "SourceUrl",
    "SqlRows",
    "SqliteCursors",
    "StreamEntry",
    "open_source",
]

if not TYPE_CHECKING:
    import importlib
    import sys

    #: The module that defines each name, which is imported, with the extra it needs, at first use.
    _HOMES = {
        "Bucket": "bucket",
        "BucketObject": "bucket",
        "CursorStore": "cursors",
        "Feed": "feed",
        "Folder": "folder",
        "FolderFile": "folder",
        "Found": "base",
        "HttpJson": "http_json",
        "ImapFolder": "imap",
        "MailMessage": "imap",
        "MemoryCursors": "cursors",
        "RedisStream": "redis_stream",
        "Source": "base",
        "SourceUrl": "urls",
        "SqlRows": "sql",
        "SqliteCursors": "cursors",
        "StreamEntry": "redis_stream",
        "open_source": "urls",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(
                f"module 'pollwise.sources' has no attribute {name!r}", name=name,
                obj=sys.modules[__name__],
            )  # fmt: skip
        found = getattr(importlib.import_module(f"pollwise.sources.{_HOMES[name]}"), name)
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
