"""Typed payloads: how models, dataclasses, Decimals and others are written and read again."""

from __future__ import annotations

import enum
import json
import math
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollwise.errors import PayloadError
from pollwise.runtime.jobs import NewJob
from pollwise.runtime.payloads.depth import DEPTH_MAX
from pollwise.runtime.payloads.typed import TypedValue


class Color(enum.Enum):
    RED = "red"


@dataclass
class Line:
    price: Decimal
    color: Color = Color.RED
    notes: list[str] = field(default_factory=list)


class Order(pydantic.BaseModel):
    id: UUID
    placed: datetime
    lines: list[Line] = []
    total: Decimal = pydantic.Field(Decimal(0), alias="sum")


class Nested(pydantic.BaseModel):
    inner: Nested | None = None


@pydantic.dataclasses.dataclass
class Checked:
    number: int


ID = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("payload", "written"),
    [
        (Decimal("1.10"), "1.10"),
        (ID, str(ID)),
        (NOON, "2026-01-01T12:00:00Z"),
        (date(2026, 1, 1), "2026-01-01"),
        (timedelta(hours=1), "PT1H"),
        (Color.RED, "red"),
        (Checked(7), {"number": 7}),
        (Line(Decimal(2)), {"price": "2", "color": "red", "notes": []}),
        ({"deep": [{"at": (NOON, 1)}]}, {"deep": [{"at": ["2026-01-01T12:00:00Z", 1]}]}),
        (
            Order(id=ID, placed=NOON, lines=[Line(Decimal("2.50"))], sum=Decimal("2.50")),
            {
                "id": str(ID),
                "placed": "2026-01-01T12:00:00Z",
                "lines": [{"price": "2.50", "color": "red", "notes": []}],
                "sum": "2.50",
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_a_typed_payload_is_written(payload: Any, written: Any) -> None:
    job = NewJob("job", payload)
    assert json.loads(job.encoded) == written
    assert job.size == len(job.encoded.encode())


@given(
    st.builds(
        Order,
        id=st.uuids(),
        placed=st.datetimes(timezones=st.just(UTC)),
        lines=st.lists(st.builds(Line, st.decimals(allow_nan=False, allow_infinity=False))),
        sum=st.decimals(allow_nan=False, allow_infinity=False),
    )
)
def test_what_was_put_is_read(order: Order) -> None:
    stored = json.loads(NewJob("job", order).encoded)
    assert TypedValue(Order, "the handler 'x'").read(stored) == order


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (Decimal("NaN"), "the Decimal NaN is not a number"),
        ({"x": Decimal("-Infinity")}, "the Decimal -Infinity is not a number"),
        (Line(Decimal("sNaN")), "the Decimal sNaN is not a number"),
        (pydantic.RootModel[float](math.nan), "not JSON compliant"),
        ({"x": b"bytes"}, "a value of the type bytes is not JSON"),
        (Line(Decimal(1), notes={"a"}), "a value of the type set is not JSON"),  # type: ignore[arg-type]
        ({ID: 1}, "keys must be str"),
        (object(), "Unable to serialize unknown type: <class 'object'>"),
    ],
)
def test_what_cannot_be_json_is_refused_with_the_reason(payload: Any, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        NewJob("job", payload)


def test_a_model_may_not_nest_deeper_than_json() -> None:
    model = Nested()
    for _ in range(DEPTH_MAX):
        model = Nested(inner=model)
    with pytest.raises(PayloadError, match=f"it nests deeper than {DEPTH_MAX} levels"):
        NewJob("job", model)


def test_a_payload_that_does_not_fit_is_told_without_its_values() -> None:
    wanted = TypedValue(Order, "the handler 'mail'")
    with pytest.raises(PayloadError) as caught:
        wanted.read({"id": "secret", "placed": "2026-01-01T12:00:00Z"})
    assert str(caught.value).startswith("the payload does not fit the handler 'mail': id: Input")
    assert "secret" not in str(caught.value)


def test_plain_json_needs_no_pydantic() -> None:
    code = (
        "import sys\n"
        "from pollwise import NewJob, NewRecord, Outbox\n"
        "NewJob('a', {'b': [1, 'c', None]}), NewRecord('a', {'b': 1.5})\n"
        "outbox = Outbox('sqlite:///x.db')\n"
        "outbox.handle('a', name='one')(lambda record: None)\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
