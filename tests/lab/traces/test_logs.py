"""Logs and exports as people have them: what is written in a form is read back."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollwise.errors import ConfigError
from pollwise.lab.traces import lines
from pollwise.lab.traces.reading import read

BEGIN = datetime(2026, 11, 14, 10, 0, tzinfo=UTC)
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def web_stamp(at: datetime) -> str:
    return f"{at.day:02}/{MONTHS[at.month - 1]}/{at:%Y:%H:%M:%S %z}"


def common(at: datetime) -> str:
    return f'192.0.2.7 - - [{web_stamp(at)}] "POST /orders HTTP/1.1" 201 312'


def combined(at: datetime) -> str:
    agent = "Mozilla/5.0 [01/Jan/2001:00:00:00 +0000] {x}"
    return f'{common(at)} "https://example.org/?a=1,2" "{agent}"'


def in_milliseconds(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}"


def rows(at: datetime) -> list[dict[str, str]]:
    stamp = in_milliseconds(at).replace("T", " ")
    return [{"field": "@timestamp", "value": stamp}, {"field": "@ptr", "value": "Cl8K"}]


def milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def each_line(line: Callable[[datetime], Any]) -> Callable[[list[datetime]], str]:
    def text(moments: list[datetime]) -> str:
        made = (line(at) for at in moments)
        return "".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in made)

    return text


def document(make: Callable[[list[datetime]], Any], indent: int | None = 4) -> Any:
    return lambda moments: json.dumps(make(moments), indent=indent)


#: Forms with whole seconds.
WHOLE: dict[str, Callable[[list[datetime]], str]] = {
    "common": each_line(common),
    "combined": each_line(combined),
    "bare": each_line(web_stamp),
    "bare, in brackets": each_line(lambda at: f"[{web_stamp(at)}]"),
    "cut out by awk": each_line(lambda at: f"[{web_stamp(at.astimezone(UTC)).split()[0]}"),
    "in CSV": lambda moments: "time;what\n" + each_line(lambda at: f"{web_stamp(at)};x")(moments),
    "nginx JSON": each_line(lambda at: {"time_local": web_stamp(at), "status": 200}),
    "nginx JSON, ISO": each_line(lambda at: {"status": 200, "time_iso8601": at.isoformat()}),
    "Apache JSON": each_line(lambda at: {"time": f"[{web_stamp(at)}]", "status": 200}),
    "short-iso of journalctl": each_line(lambda at: f"{at:%Y-%m-%dT%H:%M:%S%z} host app[7]: {at}"),
}
WHOLE |= {
    "syslog of RFC 5424": each_line(lambda at: f"<165>1 {at.isoformat()} host app 7 - - {at}"),
    "errors of nginx": each_line(lambda at: f"{at.astimezone(UTC):%Y/%m/%d %H:%M:%S} [error] 7#7"),
    "errors of Apache": each_line(lambda at: f"[{at.astimezone(UTC):%a %b %d %H:%M:%S %Y}] [x] y"),
    "NLB": each_line(lambda at: f"tls 2.0 {at.astimezone(UTC):%Y-%m-%dT%H:%M:%S} net/x"),
    "CloudFront": lambda moments: (
        "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes\n"
        + each_line(lambda at: f"{at.astimezone(UTC):%Y-%m-%d\t%H:%M:%S}\tFRA2\t7")(moments)
    ),
}
#: Forms with milliseconds.
EXACT: dict[str, Callable[[list[datetime]], str]] = {
    "nginx JSON, msec": each_line(
        lambda at: {"time_local": web_stamp(at), "msec": f"{milliseconds(at) / 1000:.3f}"}
    ),
    "journalctl -o json": each_line(
        lambda at: {"MESSAGE": [1, 2], "__REALTIME_TIMESTAMP": f"{milliseconds(at)}000"}
    ),
    "journalctl -o json-pretty": lambda moments: "".join(
        json.dumps({"__REALTIME_TIMESTAMP": f"{milliseconds(at)}000", "P": "6"}, indent=8) + "\n"
        for at in moments
    ),
    "aws logs filter-log-events": document(
        lambda moments: {
            "events": [{"timestamp": milliseconds(at), "message": "x"} for at in moments],
            "searchedLogStreams": [],
        }
    ),
    "aws logs get-query-results": document(
        lambda moments: {"results": [rows(at.astimezone(UTC)) for at in moments], "status": "x"},
        indent=None,
    ),
    "CloudWatch subscription": each_line(
        lambda at: {"owner": "1", "logEvents": [{"id": "1", "timestamp": milliseconds(at)}]}
    ),
    "CloudWatch export to S3": each_line(
        lambda at: f"{in_milliseconds(at.astimezone(UTC))}Z START RequestId: 1,2"
    ),
    "logging of Python": each_line(
        lambda at: (
            in_milliseconds(at.astimezone(UTC)).replace("T", " ").replace(".", ",")
            + " INFO done, 3 items"
        )
    ),
    "Elastic": each_line(lambda at: {"@timestamp": f"{in_milliseconds(at)}{at:%z}", "n": 1}),
}
EXACT |= {
    "ALB": each_line(lambda at: f"h2 {in_milliseconds(at.astimezone(UTC))}Z app/x 192.0.2.1:9 - 0"),
    "logfmt": each_line(lambda at: f'level=info ts={in_milliseconds(at)}{at:%z} msg="a time=b"'),
    "logfmt, quoted": each_line(lambda at: f'time="{in_milliseconds(at)}{at:%z}" level=info'),
    "logcli": each_line(lambda at: f"{in_milliseconds(at)}{at:%z} {{job='x'}} line"),
    "Loki": document(
        lambda moments: {
            "status": "success",
            "data": {
                "resultType": "streams",
                "result": [
                    {"stream": {"job": "a"}, "values": [[f"{milliseconds(at)}000000", "x"]]}
                    for at in moments
                ],
            },
        }
    ),
    "pg_dump": lambda moments: (
        "--\n-- PostgreSQL database dump\n--\n\nSET statement_timeout = 0;\n"
        "COPY public.people (id, name) FROM stdin;\n1\t2026-01-01 00:00:00\n\\.\n\n"
        "COPY public.orders (id, created_at, note) FROM stdin;\n"
        + each_line(lambda at: f'7\t{in_milliseconds(at).replace("T", " ")}{at:%z}\t"a')(moments)
        + "\\.\n\nSELECT pg_catalog.setval('public.orders_id_seq', 1, false);\n"
    ),
}
ZONES = st.sampled_from(
    [UTC, timezone(timedelta(hours=-5, minutes=-30)), timezone(timedelta(hours=9))]
)
OFFSETS = st.lists(st.integers(0, 5_000_000), min_size=1, max_size=30)


def read_from(folder: Path, text: str, **given: Any) -> Any:
    path = folder / "access.log"
    path.write_bytes(text.encode())
    return read(path, **given)


@pytest.mark.parametrize("form", EXACT)
@settings(max_examples=8, deadline=None)
@given(OFFSETS, ZONES)
def test_milliseconds_are_read_back(
    tmp_path_factory: Any, form: str, offsets: list[int], zone: timezone
) -> None:
    """In whatever order: a log is written when work ends."""
    moments = [(BEGIN + timedelta(milliseconds=each)).astimezone(zone) for each in offsets]
    moments[0] = moments[0].replace(microsecond=1000)  # so that not all have whole seconds
    trace = read_from(tmp_path_factory.mktemp("log"), EXACT[form](moments))
    expected = np.sort([at.timestamp() for at in moments])
    whole = not ((expected - expected[0]) % 1).any()
    assert trace.arrivals == pytest.approx(expected - expected[0], abs=1.0 if whole else 1e-5)


@pytest.mark.parametrize("form", WHOLE)
@settings(max_examples=8, deadline=None)
@given(OFFSETS, ZONES)
def test_arrivals_lie_in_their_second(
    tmp_path_factory: Any, form: str, offsets: list[int], zone: timezone
) -> None:
    moments = [(BEGIN + timedelta(seconds=each)).astimezone(zone) for each in offsets]
    folder = tmp_path_factory.mktemp("log")
    trace = read_from(folder, WHOLE[form](moments), seed=3)
    seconds = np.sort(offsets) - min(offsets)
    assert np.floor(trace.arrivals).tolist() == seconds.tolist()
    assert trace.span == seconds[-1] + 1
    again = read_from(folder, WHOLE[form](moments), seed=3)
    assert np.array_equal(trace.arrivals, again.arrivals)


def test_syslog_without_a_year_goes_over_new_year(tmp_path: Path) -> None:
    text = "".join(f"{at} host app[7]: x\n" for at in ("Dec 31 23:59:58", "Jan  1 00:00:03"))
    told: list[str] = []
    trace = read_from(tmp_path, text, tell=told.append)
    assert np.floor(trace.arrivals).tolist() == [0, 5]
    year = datetime.now(UTC).year
    assert f"from {year - 1}-12-31 23:59:58 UTC to {year}-01-01" in told[0]


def test_what_psql_copies_is_read_by_its_times_not_by_its_ids(tmp_path: Path) -> None:
    rows = "".join(f"{n}\tA, B, {n}\t2026-11-14 10:00:0{n}.5+00\n" for n in range(5))
    assert read_from(tmp_path, rows).arrivals.tolist() == [0, 1, 2, 3, 4]


def test_a_dump_with_two_tables_of_times_asks_which(tmp_path: Path) -> None:
    tables = "".join(
        f"COPY public.{name} (id, created_at) FROM stdin;\n1\t2026-11-14 10:00:00.5\n\\.\n"
        for name in ("orders", "mails")
    )
    with pytest.raises(ConfigError, match=r"public\.orders\.created_at, public\.mails"):
        read_from(tmp_path, f"--\n{tables}")
    assert len(read_from(tmp_path, f"--\n{tables}", column="orders.created_at").arrivals) == 1
    with pytest.raises(ConfigError, match=r"without a table that has a column with 'orders\.wann'"):
        read_from(tmp_path, f"--\n{tables}", column="orders.wann")


def test_lines_that_go_on_belong_to_the_one_before(tmp_path: Path) -> None:
    text = "2026-11-14 10:00:00.5 ERROR x\n  at y\n\tat z\n2026-11-14 10:00:02.5 ERROR x\n"
    assert read_from(tmp_path, text).arrivals.tolist() == [0, 2]


def test_a_packed_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "access.log.1.gz"
    path.write_bytes(gzip.compress(f"{combined(BEGIN)}\n".encode() * 3))
    assert len(read(path).arrivals) == 3
    assert read(path).name == "access.log"


BAD: dict[str, tuple[str, str]] = {
    "a line of another kind": (
        f"{common(BEGIN)}\nnot a request\n",
        r"access.log, line 2: 'not a request' has no time such as \[14/Nov/2026:10:00:00 \+0000\]",
    ),
    "no such month": (f"{web_stamp(BEGIN).replace('Nov', 'Nox')}\n", "line 1: .*is not a time"),
    "no such day": ("31/Nov/2026:10:00:00 +0000\n", "line 1: .*is not a time"),
    "a line without its time": (
        "2026-11-14T10:00:00Z one\n\ntwo\n", "line 3: 'two' has no time such as 2026-11-14T10",
    ),
    "no time in an event": ('{"events": [{"timestamp": 1}, {"message": ""}]}',
                            r"events\[1\]: it has no 'timestamp'"),
    "an event that is none": ('{"events": [7]}', r"events\[0\]: 7 is not a JSON object"),
    "no events": ('{"events": []}', "holds no arrivals"),
    "a row without a time": (
        '{"results": [[{"field": "a", "value": 1}, {"field": "b"}]]}',
        r"results\[0\]: which column\? name one of: a, b",
    ),
    "half a document": ('{\n "events": [\n  {"timestamp": 1},\n', "line 4: not JSON"),
    "very deep": ("[" * 100_000, "line 1: not JSON"),
    "a number of many digits": (f"[{'9' * 5000}]", "line 1: not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, name: str) -> None:
    text, match = BAD[name]
    with pytest.raises(ConfigError, match=match):
        read_from(tmp_path, text)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_keys_of_strangers_do_not_flood_an_error(tmp_path: Path, form: str) -> None:
    keys = ["x" * 100 + f"{number}" for number in range(5000)]
    text = json.dumps(dict.fromkeys(keys)) if form == "json" else ",".join(keys)
    with pytest.raises(ConfigError, match="which column") as refused:
        read_from(tmp_path, text)
    assert len(str(refused.value)) < 2000


# Limits


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_MAX", 1000)
    monkeypatch.setattr(lines, "DOCUMENT_MAX", 3000)
    with pytest.raises(ConfigError, match="line 2: it is longer than"):
        read_from(tmp_path, "1\n" + "2" * 5000)
    with pytest.raises(ConfigError, match="line 1: it is longer than"):
        read_from(tmp_path, "[" + "1," * 5000)
    many = json.dumps({"events": [{"timestamp": at} for at in range(100)]})
    assert 1000 < len(many) < 3000
    assert len(read_from(tmp_path, many).arrivals) == 100  # a document may be one line
    with pytest.raises(ConfigError, match="JSON document of more than"):
        read_from(tmp_path, "[\n" + "1,\n" * 5000)


def test_a_file_that_grows_when_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"7\n" * 2_000_000))
    assert path.stat().st_size < 10_000
    with pytest.raises(ConfigError, match="has more than 1 MiB of text; use a part of it"):
        read(path, size_max=1024**2)


def test_too_many_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINES_MAX", 100)
    with pytest.raises(ConfigError, match="has more than 100 lines"):
        read_from(tmp_path, "1\n" * 101)
    assert len(read_from(tmp_path, "1\n" * 100).arrivals) == 100
