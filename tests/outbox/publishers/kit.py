"""Shared by the tests of the publishers: records to publish, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from pollwise.errors import PublishError, PublishRefused
from pollwise.outbox.publishers import Publisher
from pollwise.outbox.records import Record
from tests.support.proxy import Proxy

T = TypeVar("T")

#: When the records of the tests were put.
PUT_AT = 1_767_225_600.25
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def record(
    number: int = 1,
    *,
    kind: str = "order.placed",
    payload: Any = None,
    key: str | None = "order-17",
    headers: Mapping[str, str] | None = None,
    outbox: str = "default",
) -> Record:
    return Record(
        id=str(number),
        outbox=outbox,
        kind=kind,
        payload={"total": "12 €"} if payload is None else payload,
        key=key,
        headers={"tenant": "acme", "X-Region": "eu"} if headers is None else headers,
        created_at=PUT_AT + number,
        attempt=1,
    )


def unique(number: int = 1) -> str:
    """The id by which a consumer drops repeats of `record(number)`."""
    return f"default-{number}-{round((PUT_AT + number) * 1e6)}"


def event(number: int = 1, **more: Any) -> dict[str, Any]:
    """`record(number)` in its envelope."""
    return {
        "specversion": "1.0",
        "id": str(number),
        "source": "/pollwise/outbox/default",
        "type": "order.placed",
        "time": f"2026-01-01T00:00:{number:02}.250000Z",
        "subject": "order-17",
        "partitionkey": "order-17",
        "tenant": "acme",
        "datacontenttype": "application/json",
        "data": {"total": "12 €"},
        **more,
    }


def attributes(number: int = 1, prefix: str = "") -> dict[str, str]:
    """The same as headers of binary mode."""
    whole = event(number)
    return {f"{prefix}{n}": v for n, v in whole.items() if n not in ("data", "datacontenttype")}


@asynccontextmanager
async def opened(publisher: Publisher[Any]) -> Any:
    try:
        yield publisher
    finally:
        await publisher.aclose()


async def cancel_and_go_on(publisher: Publisher[Any], proxy: Proxy) -> None:
    """Cancel a record while a connection opens and while it is sent; each time the next one
    works."""
    for held in ("opening", "sending"):
        proxy.hold("answers")
        task = asyncio.ensure_future(publisher(record(1)))
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert not done, held
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.release()
        await publisher(record(2))


def publish(publisher: Publisher[Any], *records: Record) -> None:
    """Publish records, one after the other, in an event loop of their own."""

    async def main() -> None:
        async with opened(publisher):
            for each in records:
                await publisher(each)

    asyncio.run(main())


async def failure(publishing: Awaitable[None], *secrets: str) -> PublishError:
    """The error of a record that another attempt may publish; it shows no secret."""
    with pytest.raises(PublishError) as caught:
        await publishing
    assert type(caught.value) is PublishError, caught.value
    assert not caught.value.permanent
    check_secrets(caught.value, secrets)
    return caught.value


async def refusal(publishing: Awaitable[None]) -> PublishRefused:
    """The error of a record that no attempt can publish."""
    with pytest.raises(PublishRefused) as caught:
        await publishing
    assert caught.value.permanent
    return caught.value


def check_secrets(error: BaseException, secrets: tuple[str, ...]) -> None:
    """Check that neither an error nor its cause shows a secret."""
    seen: BaseException | None = error
    while seen is not None:
        for secret in secrets:
            assert secret not in f"{seen} {seen!r}", "a secret is told"
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


async def soon(look: Callable[[], Awaitable[T | None]], within: float = 10.0) -> T:
    """Poll until there is a result; in real time, because a broker works."""
    async with asyncio.timeout(within):
        while (found := await look()) is None:
            await asyncio.sleep(0.01)  # real time: the broker delivers
    return found
