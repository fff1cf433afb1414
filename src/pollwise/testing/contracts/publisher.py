"""The contract of a publisher: a record that it confirms has arrived, and all others raise."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pollwise.errors import PublishError
from pollwise.outbox.envelope import unique_of
from pollwise.outbox.outbox import Outbox
from pollwise.outbox.publishers.base import Publisher
from pollwise.outbox.records import NewRecord, Record
from pollwise.outbox.stores.memory import MemoryOutboxStore
from pollwise.testing.conformance.bench import equal, expect
from pollwise.testing.contracts.base import Contract, given, leaving_nothing, without_secrets

_AT_ONCE = 20
#: Seconds that a relay may take for two records.
_RELAYED_WITHIN = 60.0
_PUT_AT = 1_767_225_600.25


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message that arrived.

    unique: what the receiver drops duplicates by: `unique_of(record)`.
    """

    unique: str
    body: bytes


def a_record(number: int, *, key: str | None = "order-1", attempt: int = 1) -> Record:
    """A record as a relay hands it over."""
    return Record(
        id=str(number),
        outbox="contract",
        kind="order.placed",
        payload={"number": number, "total": "12 €"},
        key=key,
        headers={"tenant": "acme", "X-Region": "eu"},
        created_at=_PUT_AT + number,
        attempt=attempt,
    )


class PublisherContract(Contract, ABC):
    """A publisher, and a way to read what arrived on the other side.

    secrets: texts that no error may show, such as the password in its URL.
    """

    secrets: Sequence[str] = ()

    @abstractmethod
    def publisher(self) -> Publisher[Any]:
        """A new publisher, each time to the same place."""

    @abstractmethod
    async def arrived(self) -> Sequence[Delivered]:
        """Return what arrived since `serving` began, in the order of arrival."""

    def unreachable(self) -> Publisher[Any] | None:
        """A publisher to where nobody answers; None skips what needs it."""
        return None

    async def check_a_confirmed_record_has_arrived(self) -> None:
        """When the call returns, the other side has the message, with its unique id."""
        record, publisher = a_record(1), self.publisher()
        await publisher(record)
        found = await self.arrived()
        equal([each.unique for each in found], [unique_of(record)], "the ids that arrived")
        equal(found[0].body, publisher.envelope(record).body, "the body that arrived")
        await publisher.aclose()

    async def check_records_arrive_in_their_order(self) -> None:
        """Records that are published one after the other arrive in that order."""
        records = [a_record(number) for number in range(1, 6)]
        publisher = self.publisher()
        for each in records:
            await publisher(each)
        equal(await self._ids(), list(map(unique_of, records)), "the ids that arrived")
        await publisher.aclose()

    async def check_records_at_the_same_time(self) -> None:
        """All of many records that are published at the same time arrive."""
        records = [a_record(number, key=f"k{number}") for number in range(1, _AT_ONCE + 1)]
        publisher = self.publisher()
        await asyncio.gather(*map(publisher, records))
        equal(sorted(set(await self._ids())), sorted(map(unique_of, records)), "the ids")
        await publisher.aclose()

    async def check_each_attempt_has_the_same_id(self) -> None:
        """A record that is published twice can be recognised as one; another record differs."""
        publisher = self.publisher()
        for each in (a_record(1), a_record(1, attempt=2), a_record(2)):
            await publisher(each)
        equal(len(set(await self._ids())), 2, "different ids of two records, one of them repeated")
        await publisher.aclose()

    async def check_it_closes_and_opens_again(self) -> None:
        """`aclose` ends all that was opened, also twice; the next record opens it again."""
        publisher = self.publisher()
        await publisher.aclose()
        async with leaving_nothing("a closed publisher"):
            await publisher(a_record(1))
            await publisher.aclose()
            await publisher.aclose()
        await publisher(a_record(2))
        equal(len(set(await self._ids())), 2, "records that arrived before and after it was closed")
        await publisher.aclose()

    async def check_a_cancelled_record_harms_no_other(self) -> None:
        """A record can be cancelled at any moment, and the next one arrives."""
        publisher = self.publisher()
        for turns in range(4):
            task = asyncio.ensure_future(publisher(a_record(1)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await publisher(a_record(2))
        expect(
            unique_of(a_record(2)) in await self._ids(), "a record after a cancelled one is lost"
        )
        await publisher.aclose()

    async def check_an_error_is_raised(self) -> None:
        """If nobody answers, publishing raises `PublishError`, within the publisher's timeout.

        A retry may help, so the error is not permanent, and it shows no secret.
        """
        publisher = self.unreachable()
        given(publisher, "publisher to where nobody answers")
        assert publisher is not None
        try:
            async with asyncio.timeout(publisher.timeout * 2 + 1):
                await publisher(a_record(1))
        except PublishError as error:
            without_secrets(error, self.secrets)
            expect(not getattr(error, "permanent", False), f"no retry would follow {error!r}")
        else:
            raise AssertionError("a record that nobody received counts as published")
        await publisher.aclose()

    async def check_its_name_stays(self) -> None:
        """Two publishers to one place have one name: progress is stored under it."""
        one, other = self.publisher(), self.publisher()
        expect(one.name, "the publisher has no name")
        equal(one.name, other.name, "the names of two publishers to one place")
        without_secrets(ValueError(f"{one!r} {one.name} {one.where}"), self.secrets)

    async def check_a_relay_settles_what_it_published(self) -> None:
        """An outbox can use it as a handler, and a record is done when it has arrived."""
        outbox = Outbox(MemoryOutboxStore())
        outbox.handle("*")(self.publisher())
        await outbox.store.put(NewRecord("order.placed", number, "order-1") for number in (1, 2))
        async with outbox.running():
            async with asyncio.timeout(_RELAYED_WITHIN):
                while (await outbox.store.stats()).oldest_age is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        stats = await outbox.store.stats()
        equal((stats.dead, stats.ready), (0, 0), "dead and ready records")
        equal(len(set(await self._ids())), 2, "records that arrived")
        await outbox.close()

    async def _ids(self) -> list[str]:
        return [each.unique for each in await self.arrived()]
