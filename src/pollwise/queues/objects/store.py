"""The few requests of an `ObjectQueue`, over obstore or a test's own store.

Only create-only writes decide anything, so any store that has them will do. Errors are raised
as ours. Nothing is retried here: what a lost answer means depends on the request.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.queues.objects.chain import ListedObject
from pollwise.queues.objects.private import create_file
from pollwise.runtime.clock import Clock
from pollwise.runtime.redact import without_secrets

T = TypeVar("T")

#: The maximum number of requests of a process at a time.
THREADS = 64
#: The number of objects in a page of a LIST, as S3 returns for one request.
PAGE = 1000
#: The maximum drift between two clocks, in seconds per second.
DRIFT = 2e-4


class Store(Protocol):
    """Requests on objects. Raise `StoreUnavailable` if a later try may work, else `StoreError`.

    grain: by how much the times in a LIST may be rounded down; None: find out; 0: not at all, and
        the store uses this process's own clock.
    """

    grain: float | None

    async def create(self, name: str, body: bytes) -> bool:
        """Write a new object; returns False and changes nothing if it exists."""

    async def get(self, name: str) -> bytes | None:
        """An object's body; None if it does not exist."""

    async def head(self, name: str) -> ListedObject | None: ...

    def pages(self, folder: str, after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """All objects below a folder in name order, one request per page.

        after: only those whose path below the folder is greater than this.
        """

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects, in any order; missing ones are not an error."""


class Obstore:
    """Any store of obstore.

    It uses obstore's blocking calls in our own threads. obstore's async calls deliver their answers
    from foreign threads, which abort a process that ends at that moment.
    """

    grain: float | None = None

    def __init__(self, store: Any, shown: str) -> None:
        self._store = store
        self._shown = shown
        #: The folder, if the store is one.
        self._folder: Path | None = store.prefix if type(store).__name__ == "LocalStore" else None

    async def create(self, name: str, body: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        if self._folder is not None:
            try:
                return await _in_thread(partial(create_file, self._folder, name, body))
            except OSError as error:
                raise self._our_error(error, "write") from None
        try:
            await _in_thread(partial(self._store.put, name, body, mode="create"))
        except (AlreadyExistsError, PreconditionError) as error:
            if "ConditionalRequestConflict" in str(error):
                # S3 had another write of this name in progress, which may have failed.
                raise StoreUnavailable(f"{self._shown}: two writes of {name} at once") from None
            return False
        except Exception as error:
            raise self._our_error(error, "write") from None
        return True

    async def get(self, name: str) -> bytes | None:
        try:
            return await _in_thread(lambda: bytes(self._store.get(name).bytes()))
        except FileNotFoundError as error:
            self._absent(error)
            return None
        except Exception as error:
            raise self._our_error(error, "read") from None

    async def head(self, name: str) -> ListedObject | None:
        try:
            return _item(await _in_thread(lambda: self._store.head(name)))
        except FileNotFoundError as error:
            self._absent(error)
            return None
        except Exception as error:
            raise self._our_error(error, "read") from None

    async def pages(self, folder: str, after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        offset = "/".join(filter(None, (folder, after))) if after else None
        stream = iter(self._store.list(folder, offset=offset, chunk_size=PAGE))
        if self._folder is not None:  # unsorted
            items = [item for page in [p async for p in self._read(stream)] for item in page]
            items.sort(key=lambda item: item.name)
            for start in range(0, len(items) + 1, PAGE):
                yield items[start : start + PAGE]
            return
        async for page in self._read(stream):
            yield page
            if len(page) < PAGE:
                return

    async def _read(self, stream: Iterator[Any]) -> AsyncIterator[list[ListedObject]]:
        while True:
            try:
                page = await _in_thread(lambda: [_item(meta) for meta in next(stream, ())])
            except FileNotFoundError as error:
                self._absent(error)
                return
            except Exception as error:
                raise self._our_error(error, "list") from None
            if not page:
                return
            yield page

    async def delete(self, names: Sequence[str]) -> None:
        left = list(names)
        while left:
            try:
                await _in_thread(partial(self._store.delete, left))
            except FileNotFoundError as error:
                # Some stores stop at the first missing object; those after it may still exist.
                self._absent(error)
                left = await self._still_there(left)
                continue
            except Exception as error:
                raise self._our_error(error, "delete") from None
            return

    async def _still_there(self, names: list[str]) -> list[str]:
        return [name for name in names if await self.head(name) is not None]

    def _absent(self, error: FileNotFoundError) -> None:
        """Return for a missing object; raise for a missing bucket."""
        if re.search(r"NoSuchBucket|bucket does not exist|ContainerNotFound", str(error)):
            raise self._our_error(error, "find") from None

    def _our_error(self, error: Exception, what: str) -> StoreError:
        """obstore's error as ours, without its debug dump, which may hold secrets."""
        from obstore import exceptions

        if isinstance(error, StoreError):
            return error
        whole = str(error)
        said = re.search(r"<Code>(\w+)</Code>\s*(?:<Message>([^<]*))?", whole)
        text = ": ".join(filter(None, said.groups())) if said else whole
        text = without_secrets(text.partition("\n\nDebug source")[0])
        text = re.sub(r"\s+", " ", text)[:300]
        for pattern, advice in _ADVICE.items():
            if re.search(pattern, whole, re.IGNORECASE):
                return StoreError(f"{self._shown}: cannot {what}: {advice} ({text})")
        if isinstance(error, exceptions.UnauthenticatedError):
            return StoreError(
                f"{self._shown}: the credentials are not accepted; check them ({text})"
            )
        if isinstance(error, (exceptions.PermissionDeniedError, PermissionError)):
            return StoreError(
                f"{self._shown}: not allowed to {what}; the bucket may belong to somebody else, or "
                f"the credentials lack read, write, list and delete on it ({text})"
            )
        if isinstance(error, (exceptions.NotSupportedError, exceptions.InvalidPathError)):
            return StoreError(f"{self._shown}: cannot {what}: {text}")
        if "error sending request" in whole:
            host = re.search(r"https?://[^/\s]+", text)
            text = (
                f"{host[0] if host else 'it'} does not answer; check that it runs, and the endpoint"
            )
        return StoreUnavailable(f"{self._shown}: cannot {what} now: {text}")


#: Patterns in the errors of stores, and what to do about them.
_ADVICE = {
    r"NoSuchBucket|bucket does not exist|ContainerNotFound|bucket.{0,40}not found":
        "the bucket does not exist; create it, or correct its name",
    r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|redirect without":
        "the bucket is in another region; give ?region=",
    r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken":
        "the credentials are not accepted; check them",
    r"169\.254\.169\.254|metadata\.google|no credentials|missing credentials|CredentialsError":
        "no credentials were found; set those of your provider in the environment, such as "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; profiles of AWS need pollwise[sqs] as well",
    r"AccessDenied|Forbidden":
        "access is denied: the bucket may belong to somebody else, or the credentials lack read, "
        "write, list and delete on it",
}  # fmt: skip


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="pollwise-objects")


#: The process in which obstore was used first; its threads do not survive a fork.
_process: int | None = None


async def _in_thread(call: Callable[[], T]) -> T:
    global _process
    if _process is None:
        _process = os.getpid()
    elif _process != os.getpid():
        raise StoreError(
            "this process was forked from one that had used object storage, and the threads of "
            "its client do not survive a fork. Use it only after the fork, or start children "
            'with multiprocessing.get_context("spawn")'
        )
    return await asyncio.get_running_loop().run_in_executor(_threads(), call)


def _item(meta: Any) -> ListedObject:
    return ListedObject(meta["path"], meta["size"], meta["last_modified"].timestamp())


class StoreClock:
    """The store's time within known bounds, without trusting local clocks.

    An object with a name that only we write shows how far the store's clock is ahead of ours: it
    was written between the request (t0) and its answer (t1), and a LIST shows the time m, rounded
    down by up to its grain. So the store was ahead by at least m - t1 and at most m + grain - t0.
    All observations are combined; between them the bounds widen by the possible drift. Local time
    is the event loop's, which does not jump when the clock is set.
    """

    def __init__(self, clock: Clock, grain: float | None) -> None:
        self._clock = clock
        self.grain: float = 1.0 if grain is None else grain
        self._given = grain is not None
        self._drift = 0.0 if grain == 0 else DRIFT
        self._low = self._high = 0.0
        self._at: float | None = None
        self._sent: dict[str, tuple[float, float]] = {}

    def wrote(self, name: str, sent: float, answered: float) -> None:
        """Remember when an object was written, until a LIST shows it.

        Nobody else may ever write its name, and it is written once: not an entry of a chain.
        """
        while len(self._sent) >= 256:
            del self._sent[next(iter(self._sent))]
        self._sent[name] = (sent, answered)

    def saw(self, items: Sequence[ListedObject]) -> None:
        for item in items if self._sent else ():
            times = self._sent.pop(item.name, None)
            if times is not None:
                self._learn(item.written, *times)

    def _learn(self, written: float, sent: float, answered: float) -> None:
        if not self._given and written != int(written):
            self.grain, self._given = 0.001, True
        low, high = written - answered, written + self.grain - sent
        now = self._clock.now()
        if self._at is not None:
            drift = (now - self._at) * self._drift
            seen_low, seen_high = self._low - drift, self._high + drift
            if max(low, seen_low) <= min(high, seen_high):
                low, high = max(low, seen_low), min(high, seen_high)
            # Otherwise a clock was set, and the newest observation counts.
        self._low, self._high, self._at = low, high, now

    @property
    def known(self) -> bool:
        return self._at is not None

    @property
    def age(self) -> float:
        """The time since the last observation."""
        return math.inf if self._at is None else self._clock.now() - self._at

    def now(self) -> float:
        """The store's time, as exactly as it is known."""
        return self._clock.now() + (self._low + self._high) / 2

    def surely(self) -> float:
        """A lower bound of the store's time."""
        now = self._clock.now()
        return now + self._low - (now - (self._at or 0.0)) * self._drift

    def at_most(self) -> float:
        """An upper bound of the store's time."""
        now = self._clock.now()
        return now + self._high + (now - (self._at or 0.0)) * self._drift

    def local(self, moment: float) -> float:
        """When the store's time is surely `moment`, in seconds since 1970 by the local clock."""
        return self._clock.epoch() + (moment - self.surely())
