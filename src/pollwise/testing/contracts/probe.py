"""The contract of a probe: what `make(target)` returns, and what it raises."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pollwise.errors import ConfigError
from pollwise.fleet.probes import facts_of, make_probe
from pollwise.fleet.probes.kept import connections
from pollwise.fleet.targets import Probe, ProbeContext, Reading, Target
from pollwise.testing.conformance.bench import equal, expect
from pollwise.testing.contracts.base import Contract, given, leaving_nothing, without_secrets

_AT_ONCE = 5
_UNKNOWN = "no_such_option"


class ProbeContract(Contract):
    """A probe type, with options of targets for which it is to be checked.

    type: the probe type, as in fleet.toml.
    options: of a target whose polls succeed.
    failing: of one whose polls fail, such as an address where nothing listens; None skips this.
    hanging: of one whose polls never end; None skips this.
    wrong: options of which each must be refused when the target is read.
    secrets: texts that no error may show.
    steady: all polls of `options` find the same value.
    timeout: seconds that a poll may take.
    """

    type: ClassVar[str]
    options: Mapping[str, Any]
    failing: Mapping[str, Any] | None = None
    hanging: Mapping[str, Any] | None = None
    wrong: Sequence[Mapping[str, Any]] = ()
    secrets: Sequence[str] = ()
    steady: bool = True
    timeout: float = 10.0

    async def check_a_poll_returns_a_reading(self) -> None:
        """The reading can be stored, and has no fact but those that FACTS names."""
        reading = await self._polled(self.options)
        kept = json.loads(json.dumps(reading.kept()))
        equal(Reading.restored(kept), reading, "the reading after it was stored")
        facts = facts_of(self.type)
        undeclared = set() if facts is None else set(reading.facts) - set(facts)
        expect(not undeclared, f"FACTS lacks the facts {sorted(undeclared)}")

    async def check_a_poll_with_the_last_reading(self) -> None:
        """A poll that gets the reading before it finds the same, where nothing has changed."""
        first = await self._polled(self.options)
        second = await self._polled(self.options, first)
        if self.steady:
            equal(second.value, first.value, "the value of a source that did not change")

    async def check_polls_at_the_same_time(self) -> None:
        """Polls of one probe can run side by side, as when a poll outlives its timeout."""
        target, probe = self._made(self.options)
        async with connections():
            readings = await asyncio.gather(
                *(self._poll(target, probe, None) for _ in range(_AT_ONCE))
            )
        if self.steady:
            equal(len({each.value for each in readings}), 1, "values of polls at the same time")

    async def check_an_unknown_option_is_refused(self) -> None:
        """A misspelt option is an error when the target is read, and the error names it."""
        said = self._refused({**self.options, _UNKNOWN: 1}, "an unknown option")
        expect(_UNKNOWN in said, f"the error does not name the option: {said}")

    async def check_wrong_options_are_refused(self) -> None:
        """Options with wrong values are an error when the target is read, before any poll."""
        given(self.wrong, "wrong options")
        for options in self.wrong:
            said = self._refused(options, f"the options {sorted(options)}")
            expect(said.strip(), "the error says nothing")

    async def check_a_failed_poll_raises(self) -> None:
        """A poll that fails raises an error, and returns no reading that looks like success."""
        given(self.failing is not None, "options of a target that fails")
        try:
            reading = await self._polled(self.failing or {})
        except Exception as error:
            without_secrets(error, self.secrets)
            expect(str(error).strip(), f"the {type(error).__name__} says nothing")
        else:
            raise AssertionError(f"a poll that fails returned {reading!r}")

    async def check_a_poll_that_hangs_is_ended(self) -> None:
        """A poll that is cancelled at its timeout ends, and does not suppress the cancellation."""
        given(self.hanging is not None, "options of a target that hangs")
        async with leaving_nothing("a poll that was cancelled"):
            try:
                reading = await self._polled(self.hanging or {}, within=0.2)
            except TimeoutError:
                return
        raise AssertionError(f"a poll that hangs returned {reading!r}")

    async def check_a_poll_leaves_nothing_behind(self) -> None:
        """When a poll has ended, no task of it goes on."""
        async with leaving_nothing("a poll"):
            await self._polled(self.options)

    def _made(self, options: Mapping[str, Any]) -> tuple[Target, Probe]:
        target = Target("contract", self.type, timeout=self.timeout, options=options)
        return target, make_probe(target)

    def _refused(self, options: Mapping[str, Any], what: str) -> str:
        try:
            self._made(options)
        except ConfigError as error:
            without_secrets(error, self.secrets)
            return str(error)
        raise AssertionError(f"{what} are accepted: raise ConfigError, as ProbeOptions does")

    async def _polled(
        self, options: Mapping[str, Any], last: Reading | None = None, within: float | None = None
    ) -> Reading:
        """Poll a target once, and end the poll at its timeout, as a fleet does."""
        async with connections():
            return await self._poll(*self._made(options), last, within)

    async def _poll(
        self, target: Target, probe: Probe, last: Reading | None, within: float | None = None
    ) -> Reading:
        limit = self.timeout if within is None else within
        context = ProbeContext(last, asyncio.get_running_loop().time() + limit, time.time())
        async with asyncio.timeout(limit):
            return Reading.of(await probe(target, context))
