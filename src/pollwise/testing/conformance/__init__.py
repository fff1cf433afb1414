"""The contract of a queue, clause by clause, as checks for any implementation.

Write a `Bench` that opens your queue, and run the suite:

    class MyBench(Bench):
        def __init__(self, clock):
            self.clock = clock
        async def queue(self, **options):  # a fresh handle on the same store, each time
            return self.keep(MyQueue("test", clock=self.clock, **options))
        async def elapse(self, units):
            await self.clock.advance(units * self.unit)

With pytest, one test per clause:

    @pytest.mark.parametrize("check", CHECKS, ids=name_of)
    def test_contract(check):
        clock = VirtualClock()
        clock.run(run(check, MyBench(clock)))

Without: `report = await exercise(make_bench)`, then `print(report)` and `assert report.ok`.

Every check needs its own bench, on an empty store. A check that needs something that
`queue.capabilities` denies raises `NotCapable`, so pytest skips it; no other test is skipped. A
store with a real clock sets `unit` to the shortest time in seconds that it can distinguish; all
waiting is in units.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pollwise.testing.conformance import (
    cancelling,
    codecs,
    leasing,
    ordering,
    putting,
    record,
    results,
    schedules,
    settling,
    steering,
    views,
    waking,
)
from pollwise.testing.conformance.bench import Bench, Check, NotCapable
from pollwise.testing.conformance.flows import ending, freeing, keeping
from pollwise.testing.conformance.limits import changes, circle, rates, room, together, turns

__all__ = [
    "CHECKS",
    "Bench",
    "Check",
    "ConformanceReport",
    "NotCapable",
    "exercise",
    "name_of",
    "run",
]

_MODULES = (
    putting, ordering, leasing, settling, record, results, views, waking, cancelling,
    steering, codecs, schedules, freeing, ending, keeping, room, rates, turns, circle,
    together, changes,
)  # fmt: skip
#: Every clause of the contract: all functions of these modules that are named `check_…`.
CHECKS: tuple[Check, ...] = tuple(
    check
    for module in _MODULES
    for name, check in vars(module).items()
    if name.startswith("check_")
)


@dataclass
class ConformanceReport:
    """The result of each check, by its name."""

    passed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failed

    def __str__(self) -> str:
        lines = [
            f"{len(self.passed)} passed, {len(self.skipped)} skipped, {len(self.failed)} failed"
        ]
        lines += [f"skipped {name}: {reason}" for name, reason in self.skipped.items()]
        lines += [
            f"FAILED {name}: {type(error).__name__}: {error}" for name, error in self.failed.items()
        ]
        return "\n".join(lines)


def name_of(check: Check) -> str:
    """A check's name for a test's id: `check_settle_twice` is `settle_twice`."""
    return check.__name__.removeprefix("check_")


async def run(check: Check, bench: Bench) -> None:
    """Run one check on its own bench, and close what it opened."""
    try:
        await check(bench)
    finally:
        await bench.close()


async def exercise(make_bench: Callable[[], Bench | Awaitable[Bench]]) -> ConformanceReport:
    """Run every check, each on its own bench, and report; a failure does not end it."""
    report = ConformanceReport()
    for check in CHECKS:
        name = name_of(check)
        made = make_bench()
        bench = made if isinstance(made, Bench) else await made
        try:
            await run(check, bench)
        except NotCapable as reason:
            report.skipped[name] = str(reason)
        except Exception as error:
            report.failed[name] = error
        else:
            report.passed.append(name)
    return report
