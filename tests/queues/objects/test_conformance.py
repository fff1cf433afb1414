"""The queue in a bucket keeps the contract."""

from __future__ import annotations

import pytest

from pollwise.testing import VirtualClock
from pollwise.testing.conformance import CHECKS, Check, NotCapable, name_of, run
from tests.queues.objects.stores import ObjectBench


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_contract(check: Check) -> None:
    clock = VirtualClock()
    try:
        clock.run(run(check, ObjectBench(clock)))
    except NotCapable as reason:
        pytest.skip(str(reason))
