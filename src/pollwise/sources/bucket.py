"""The objects below a prefix of a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pollwise.errors import ConfigError, StoreError
from pollwise.queues.objects.chain import ListedObject
from pollwise.queues.objects.opening import local_store, remote_store
from pollwise.queues.objects.store import Obstore
from pollwise.queues.urls import parse_url
from pollwise.runtime.clock import Clock
from pollwise.runtime.redact import shown_url
from pollwise.sources.base import LIMIT, Found, State
from pollwise.sources.cursors import CursorStore
from pollwise.sources.listed import REMEMBERED, ListedSource, digest_of

EXAMPLES = ("s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix", "file:///folder")
#: How often a request is repeated by the client itself.
RETRIES = 2
_OPTIONS = ("region", "endpoint", "account", "timeout")


@dataclass(frozen=True, slots=True)
class BucketObject:
    """An object: its name in the bucket, its size in bytes, and when it was written, in seconds
    since 1970."""

    name: str
    size: int
    written_at: float


class Bucket(ListedSource[BucketObject]):
    """The objects below a prefix, each once; one that is written again is delivered again.

        uploads = Bucket("s3://uploads/inbox?region=eu-central-1", cursor="sqlite:///cursors.db")

    S3, Google Cloud Storage, Azure, or a folder; credentials and options are those of a queue in a
    bucket. A poll lists the prefix: one request for 1,000 objects.

    ordered: new names always sort after old ones, like dates or numbers of one length. Then a poll
        lists only names after the last one, and there may be any number of objects. An object with
        a smaller name that is written later is never seen.

    Otherwise move or delete objects that are done: more than 10,000 below the prefix are an error.
    """

    def __init__(
        self,
        url: str,
        *,
        ordered: bool = False,
        cursor: str | CursorStore | None = None,
        name: str | None = None,
        limit: int = LIMIT,
        clock: Clock | None = None,
    ) -> None:
        at = parse_url(url, ("s3", "gs", "az", "file"), EXAMPLES, what="bucket")
        self._shown = shown_url(at.without_query())
        super().__init__(name or f"bucket:{self._shown}", cursor, limit=limit, clock=clock)
        options = dict(at.query())
        for key in options:
            if key not in _OPTIONS:
                raise ConfigError(
                    f"the URL of a bucket does not take {key!r}; known: {', '.join(_OPTIONS)}"
                )
        parts = at.parts
        if parts.username or parts.password:
            raise ConfigError(
                f"{self._shown} holds credentials; leave them to the environment, such as "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        self.prefix: str = unquote(parts.path).strip("/")
        store: Any
        if parts.scheme == "file":
            if parts.netloc or not self.prefix:
                raise ConfigError(f"{self._shown} does not name a folder; write file:///folder")
            store, self.prefix = local_store(Path(unquote(parts.path))), ""
        elif not parts.netloc:
            raise ConfigError(f"{self._shown} does not name a bucket; write {EXAMPLES[0]}")
        else:
            store = remote_store(
                parts.scheme, parts.netloc, options, retries=RETRIES, what="a source"
            )
        self.ordered = ordered
        self._store = Obstore(store, self._shown)

    async def _find(self, state: State, hold: float) -> Found[BucketObject]:
        if not self.ordered:
            return await super()._find(state, hold)
        after = state.get("after", "")
        found: list[ListedObject] = []
        async for page in self._store.pages(self.prefix, after):
            found += page[: self.limit + 1 - len(found)]
            if len(found) > self.limit:
                break
        new = found[: self.limit]
        if not new:
            return Found((), state)
        more = len(found) > self.limit
        return Found([_object(each) for each in new], {"after": self._below(new[-1].name)}, more)

    def _below(self, name: str) -> str:
        """The path of an object below the prefix."""
        return name.removeprefix(f"{self.prefix}/") if self.prefix else name

    async def _list(self, state: State) -> Sequence[tuple[str, BucketObject]]:
        found: list[ListedObject] = []
        async for page in self._store.pages(self.prefix):
            found += page
            if len(found) > REMEMBERED:
                raise StoreError(
                    f"{self._shown} holds more than {REMEMBERED:,} objects; move away or delete "
                    "those that are done, or give ordered=True if their names only ever grow"
                )
        found.sort(key=lambda each: (each.written, each.name))
        return [(digest_of(each.name, each.size, each.written), _object(each)) for each in found]


def _object(found: ListedObject) -> BucketObject:
    return BucketObject(found.name, found.size, found.written)
