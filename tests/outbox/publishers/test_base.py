"""What all publishers share, on a client that does as it is told, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pollwise.errors import ConfigError, PublishError, PublishRefused
from pollwise.outbox.envelope import Message
from pollwise.outbox.publishers.base import Publisher, choose, label, place_of, secrets_in
from pollwise.outbox.records import Record
from pollwise.runtime.clock import VirtualClock
from tests.outbox.publishers.kit import failure, record
from tests.support.kit import virtually


class Client:
    """One link of the publisher below."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent: list[str] = []
        self.alive = True
        self.closed = False


class Told(Publisher[Client]):
    """Takes `open_takes` seconds to open and `takes` seconds a record, or raises `error`."""

    def __init__(self, **options: Any) -> None:
        super().__init__("told", "told://broker", ["hunter2", "hunter2-longer"], options)  # type: ignore[arg-type]
        self.clients: list[Client] = []
        self.takes: Callable[[Record], float] = lambda record: 0.0
        self.open_takes = 0.0
        self.error: Exception | None = None

    async def _open(self) -> Client:
        client = Client(len(self.clients))
        self.clients.append(client)
        try:
            await asyncio.sleep(self.open_takes)
        except asyncio.CancelledError:
            client.closed = True
            raise
        if self.error:
            raise self.error
        return client

    async def _send(self, client: Client, record: Record, message: Message) -> None:
        await asyncio.sleep(self.takes(record))
        if self.error:
            raise self.error
        client.sent.append(record.id)

    async def _close(self, client: Client) -> None:
        client.closed = True
        raise OSError("whatever a client raises when it is closed")

    def _alive(self, client: Client) -> bool:
        return client.alive

    def _explained(self, error: Exception) -> PublishError:
        return PublishError(f"{self.where}: {self._plain(error)}")


def publishing(publisher: Told, *numbers: int) -> list[asyncio.Task[None]]:
    return [asyncio.ensure_future(publisher(record(number))) for number in numbers]


def test_nothing_is_opened_before_the_first_record() -> None:
    async def main(clock: VirtualClock) -> None:
        publisher = Told()
        await publisher.aclose()
        assert not publisher.clients
        await publisher(record())
        await publisher.aclose()
        await publisher.aclose()
        assert [client.closed for client in publisher.clients] == [True]
        await publisher(record(2))  # opens again
        assert len(publisher.clients) == 2

    virtually(main)


def test_one_opens_for_all_who_begin_at_once() -> None:
    async def main(clock: VirtualClock) -> None:
        publisher = Told()
        publisher.open_takes = 1.0
        await asyncio.gather(*publishing(publisher, *range(1, 21)))
        assert len(publisher.clients) == 1
        assert clock.now() == 1.0

    virtually(main)


def test_an_opening_that_fails_fails_for_all_of_them_once() -> None:
    async def main(clock: VirtualClock) -> None:
        publisher = Told()
        publisher.open_takes, publisher.error = 1.0, OSError("refused for hunter2")
        tasks = publishing(publisher, *range(1, 21))
        await asyncio.wait(tasks)
        assert {str(task.exception()) for task in tasks} == {"told://broker: refused for ***"}
        assert (len(publisher.clients), clock.now()) == (1, 1.0)
        publisher.error = None
        await publisher(record())
        assert len(publisher.clients) == 2

    virtually(main)


def test_an_opening_that_nobody_waits_for_is_ended() -> None:
    async def main(clock: VirtualClock) -> None:
        publisher = Told(timeout="5s")
        publisher.open_takes = 60.0
        first, second = publishing(publisher, 1, 2)
        await clock.advance(1)
        first.cancel()
        await clock.advance(1)
        assert not publisher.clients[0].closed  # the other one still waits
        assert "within 5 s" in str(await failure(second))
        await clock.advance(0.1)
        assert publisher.clients[0].closed
        publisher.open_takes = 0.0
        await publisher(record(3))
        assert publisher.clients[1].sent == ["3"]

    virtually(main)


def test_a_link_that_did_not_answer_gets_no_more_records_and_is_closed_after_the_others() -> None:
    async def main(clock: VirtualClock) -> None:
        publisher = Told(timeout="5s")
        takes = {"1": 60.0, "2": 4.0, "3": 0.0}
        publisher.takes = lambda record: takes[record.id]
        (slow,) = publishing(publisher, 1)
        await clock.advance(3)
        (other,) = publishing(publisher, 2)
        assert "may or may not have the record" in str(await failure(slow))
        first = publisher.clients[0]
        await publisher(record(3))
        assert publisher.clients[1].sent == ["3"]
        assert not first.closed
        await other
        await clock.advance(0.1)
        assert first.closed
        assert first.sent == ["2"]

    virtually(main)


def test_a_link_that_is_lost_is_opened_again() -> None:
    async def main(clock: VirtualClock) -> None:
        publisher = Told()
        await publisher(record(1))
        publisher.clients[0].alive = False
        await publisher(record(2))
        await clock.advance(0.1)
        assert publisher.clients[0].closed
        assert publisher.clients[1].sent == ["2"]

    virtually(main)


def test_closing_ends_an_opening_and_waits_for_no_record() -> None:
    async def main(clock: VirtualClock) -> None:
        publisher = Told()
        publisher.open_takes = 60.0
        tasks = publishing(publisher, 1, 2)
        await clock.advance(1)
        await publisher.aclose()
        for task in tasks:
            assert "closed meanwhile" in str(await failure(task))
        assert clock.now() == 1.0
        assert publisher.clients[0].closed

    virtually(main)


def test_errors_of_ours_pass_as_they_are() -> None:
    async def main(clock: VirtualClock) -> None:
        publisher = Told()
        for error in (PublishRefused("no"), PublishError("later"), ConfigError("wrong")):
            publisher.error = None
            await publisher(record())
            publisher.error = error
            with pytest.raises(type(error)) as caught:
                await publisher(record())
            assert caught.value is error

    virtually(main)


def test_a_client_that_cancels_what_waits_for_it_is_no_relay_that_stops() -> None:
    async def main(clock: VirtualClock) -> None:
        publisher = Told()

        def cancelled(record: Record) -> float:
            raise asyncio.CancelledError

        publisher.takes = cancelled
        assert "ended the connection" in str(await failure(publisher(record())))
        publisher.takes = lambda record: 60.0
        (task,) = publishing(publisher, 1)
        await clock.advance(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtually(main)


def test_secrets_are_hidden_wherever_they_turn_up() -> None:
    publisher = Told()
    assert publisher._plain("a hunter2-longer b hunter2 c") == "a *** b *** c"
    assert publisher._plain(OSError()) == "OSError"
    assert len(publisher._plain("x" * 10_000)) < 600


@pytest.mark.parametrize(
    ("url", "shown", "secrets"),
    [
        ("amqp://u:p%40ss@host:5672/v", "amqp://host:5672", {"p%40ss", "p@ss"}),
        ("https://token@host/path", "https://host", {"token"}),
        ("https://[::1]:8443/x?api_key=abc&n=1", "https://[::1]:8443", {"abc"}),
        ("https://host", "https://host", set()),
    ],
)
def test_a_place_is_shown_by_its_host_alone(url: str, shown: str, secrets: set[str]) -> None:
    found, hidden = place_of(url, ["amqp", "https"], "amqp://host")
    assert found == shown
    assert set(hidden) == set(secrets_in(url)) == secrets


def test_names_are_made_of_what_was_chosen() -> None:
    def by_tenant(record: Record) -> str:
        return str(record.key)

    assert label("orders") == "orders"
    assert label(by_tenant) == "by_tenant"
    assert label(lambda record: "x") == "chosen"
    assert choose(by_tenant, record(), "stream") == "order-17"
    assert Told(name="mine").name == Told(name="mine").__name__ == "mine"
    assert repr(Told()) == "Told('told://broker', name='told')"
