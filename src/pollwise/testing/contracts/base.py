"""The base of all contracts: finds their checks, and runs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from pollwise.testing.conformance import ConformanceReport
from pollwise.testing.conformance.bench import NotCapable, expect

_START = "check_"
#: True in what `leaving_nothing` watches, and in the tasks that it starts.
_STARTS: ContextVar[bool] = ContextVar("_STARTS", default=False)
#: Seconds that tasks may take to end after what started them.
ENDS_WITHIN = 5.0


class Contract:
    """The clauses of a contract: its methods whose names begin with `check_`.

    A check that cannot be run, because the subclass leaves out what it needs, is skipped.
    """

    @classmethod
    def checks(cls) -> list[str]:
        """The names of the checks, in their order."""
        every = {name: None for each in reversed(cls.__mro__) for name in vars(each)}
        return [name.removeprefix(_START) for name in every if name.startswith(_START)]

    def run(self, check: str) -> None:
        """Run one check, in an event loop of its own. AssertionError says what is broken."""
        asyncio.run(self._run(check))

    def exercise(self) -> ConformanceReport:
        """Run every check, and report; a failure does not end it."""
        report = ConformanceReport()
        for name in self.checks():
            try:
                self.run(name)
            except NotCapable as reason:
                report.skipped[name] = str(reason)
            except Exception as error:
                report.failed[name] = error
            else:
                report.passed.append(name)
        return report

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Override it to start what the checks need, such as a server; each check is run inside."""
        yield

    async def _run(self, check: str) -> None:
        async with self.serving():
            await getattr(self, f"{_START}{check}")()


def given(thing: object, what: str) -> None:
    """Skip the check unless the subclass gives what it needs."""
    if not thing:
        raise NotCapable(f"the contract gives no {what}")


@asynccontextmanager
async def leaving_nothing(what: str) -> AsyncIterator[None]:
    """Expect that all tasks that the block starts end soon after it."""
    loop, started = asyncio.get_running_loop(), set[asyncio.Task[Any]]()
    before, mark = loop.get_task_factory(), _STARTS.set(True)

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if _STARTS.get():  # not a task of a server that was started before
            started.add(task)
        return task

    loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(before)
        _STARTS.reset(mark)
    left = {task for task in started if not task.done()}
    if left:
        _, left = await asyncio.wait(left, timeout=ENDS_WITHIN)
    expect(not left, f"{what} left {len(left)} tasks behind: {[each.get_name() for each in left]}")


def without_secrets(error: BaseException | None, secrets: Iterable[str]) -> None:
    """Expect that an error, and the errors behind it, show no secret."""
    while error is not None:
        for secret in secrets:
            shown = secret in f"{error} {error!r}"
            expect(not shown, f"a {type(error).__name__} shows the secret that begins {secret[:3]}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
