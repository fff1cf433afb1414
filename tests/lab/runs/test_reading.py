from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from pollwise.errors import ConfigError
from pollwise.lab.runs import reading


def read(folder: Path, text: str, **options: str) -> dict[str, list[float]]:
    path = folder / "runs.csv"
    path.write_text(text, encoding="utf-8")
    return reading.read(path, **options)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12.5\n3\n", {"": [12.5, 3.0]}),
        ("# builds\n\n1m30s\n250ms\n", {"": [90.0, 0.25]}),
        ("seconds\n7\n", {"": [7.0]}),
        ("group,seconds\nbuild,7\ntest,8\nbuild,9\n", {"build": [7.0, 9.0], "test": [8.0]}),
        ("Name;Duration\n".replace(";", ",") + "export, 5\n", {"export": [5.0]}),
        ("id,took\n3,5\n", {"": [5.0]}),
        ("build,7\nbuild,8\n", {"": [7.0, 8.0]}),
        ("anything\n7\n", {"": [7.0]}),
    ],
)
def test_runs_are_found(tmp_path: Path, text: str, found: dict[str, list[float]]) -> None:
    assert read(tmp_path, text) == found


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    text = "began,project,wall\n1,site,20\n2,docs,30\n"
    assert read(tmp_path, text, column="wall", group="project") == {"site": [20.0], "docs": [30.0]}
    assert read(tmp_path, text, column="3") == {"": [20.0, 30.0]}
    assert read(tmp_path, "site,20\n", column="2", group="1") == {"site": [20.0]}


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv.gz"
    path.write_bytes(gzip.compress(b"5\n6\n"))
    assert reading.read(path) == {"": [5.0, 6.0]}


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("5\nsoon\n", {}, r"runs.csv, line 2: column 1: 'soon' is not a duration; write seconds"),
        ("group,seconds\na,1\na,-2\n", {}, "line 3: column 'seconds': '-2' is not a duration"),
        ("group,seconds\na,nan\n", {}, "line 2: column 'seconds': 'nan' is not a duration"),
        ("group,seconds\na\n", {}, "line 2: it has 1 columns; the durations are in column 'sec"),
        ("seconds\n2592001\n", {}, "line 2: column 'seconds': '2592001' is longer than 30 days"),
        ("a,b\n1,2\n", {}, "line 1: which column has the durations? name one of: a, b"),
        ("a,b\n1,2\n", {"column": "bb"}, r"line 1: no column is named 'bb' \(did you mean 'b'"),
        ("a,b\n1,2\n", {"column": "3"}, "line 1: there is no column 3; there are 1 to 2"),
        ("1,2\n", {"column": "b"}, "line 1: there is no header to find 'b' in"),
        ("a,seconds\n1,2\n", {"group": "c"}, "line 1: no column is named 'c'"),
        ("", {}, "holds no runs; give a file with one duration a line"),
        ("seconds\n", {}, "holds no runs"),
        ("\xff", {}, "line 1|holds no runs|is not text"),
    ],
)
def test_errors_say_where(tmp_path: Path, text: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        read(tmp_path, text, **options)


def test_too_many_runs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RUNS_MAX", 2)
    with pytest.raises(ConfigError, match="has more than 2 runs; use a part of it"):
        read(tmp_path, "1\n2\n3\n")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv cannot be read"):
        reading.read(tmp_path / "none.csv")
