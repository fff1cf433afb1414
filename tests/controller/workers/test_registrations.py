"""How often workers may register."""

from __future__ import annotations

from pollwise.controller.http.answers import HttpError
from pollwise.controller.workers.registrations import (
    AT_ONCE,
    REMEMBERED,
    TOKEN_AT_ONCE,
    TOKEN_PER_SECOND,
    RegistrationLimit,
)
from pollwise.runtime.clock import VirtualClock


def admitted(limit: RegistrationLimit, who: str, names: list[str]) -> int:
    found = 0
    for name in names:
        try:
            limit.admit(who, name)
        except HttpError as error:
            if error.status != 429 or int(error.headers["Retry-After"]) < 1:
                raise
        else:
            found += 1
    return found


def test_a_token_registers_a_limited_number_of_workers_whatever_their_names() -> None:
    clock = VirtualClock()

    async def main() -> None:
        limit = RegistrationLimit(5.0, clock)
        names = [f"worker-{n}" for n in range(1500)]
        assert admitted(limit, "flood", names) == TOKEN_AT_ONCE
        assert admitted(limit, "flood", ["one more"]) == 0
        assert admitted(limit, "other", ["a"]) == 1
        await clock.sleep(10)
        assert admitted(limit, "flood", names) == 10 * TOKEN_PER_SECOND

    clock.run(main())


def test_a_name_that_is_refused_costs_the_token_nothing() -> None:
    clock = VirtualClock()

    async def main() -> None:
        limit = RegistrationLimit(5.0, clock)
        assert admitted(limit, "t", ["same"] * 1000) == AT_ONCE
        assert admitted(limit, "t", [f"w{n}" for n in range(1000)]) == TOKEN_AT_ONCE - AT_ONCE

    clock.run(main())


def test_its_memory_is_bounded_and_without_an_interval_there_is_no_limit() -> None:
    async def main() -> None:
        limit = RegistrationLimit(5.0, VirtualClock())
        for n in range(REMEMBERED + 100):
            limit.admit(f"token-{n}", "a")
        assert len(limit._left) <= REMEMBERED
        assert admitted(RegistrationLimit(0.0, VirtualClock()), "t", ["a"] * 1000) == 1000

    VirtualClock().run(main())
