"""What the process of a comparison reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pollwise.errors import ConfigError
from pollwise.lab import process


def test_an_uploaded_export_is_read_as_the_form_says(tmp_path: Path) -> None:
    series = {"metric": {}, "values": [[60 * number, "2"] for number in range(5)]}
    (tmp_path / "trace").write_text(json.dumps([series]))
    asked = {"file": str(tmp_path / "trace"), "name": "orders.json", "values": "count"}
    trace = process.trace_of(asked)
    assert (trace.name, len(trace.arrivals), trace.span) == ("orders.json", 10, 300.0)
    with pytest.raises(ConfigError, match=r"^orders.json, \[0\]: are these arrivals a second"):
        process.trace_of({**asked, "values": "auto"})


def test_a_report_says_what_the_file_was_taken_for(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("id,at\n1,1700000000\n2,1700000060\n3,1700000090\n")
    facts = process.compared(
        {
            "trace": {"file": str(tmp_path / "trace"), "name": "orders.csv"},
            "strategies": "fixed 5s",
            "price": "s3-list",
            "wait_price": "0.01/3600",
        }
    )
    assert facts["notes"][0].startswith("The file: read 3 times from column 2 'at': seconds since")


def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FILE_MAX", 1024**2)
    (tmp_path / "trace").write_text("1\n" * 1024**2)
    with pytest.raises(ConfigError, match=r"^big.csv has more than 1 MiB of text"):
        process.trace_of({"file": str(tmp_path / "trace"), "name": "big.csv"})
