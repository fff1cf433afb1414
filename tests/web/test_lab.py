"""The pages of the lab: what can be compared, its bounds, and the report."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from pollwise.lab.traces import metrics, stamps, synthetic
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.rollups import Histogram, HistoryPoint
from pollwise.web import comparisons
from pollwise.web.app import Web, application
from pollwise.web.comparisons import ComparisonRun
from pollwise.web.pages.lab import form as lab_form
from pollwise.web.pages.lab import page as lab_page
from pollwise.web.rendering import HERE
from pollwise.web.sources import Sources
from tests.web.viewers import Somebody, browsing

HOSTILE = "<img src=x onerror=alert(1)>.csv"
#: A comparison that takes far longer than a test may.
LONG = {"traffic": "workload", "workload": "steady", "hours": "700", "strategies": "worth"}


class BusyQueue(MemoryQueue):
    """A queue whose workers did the same in each of the last 60 minutes."""

    async def history(self, *_: Any, **__: Any) -> list[HistoryPoint]:
        now = self.clock.epoch() // 60 * 60
        waits = Histogram.of([0.5, 1.0, 2.0])
        return [
            point
            for at in range(60)
            for point in (
                HistoryPoint(now - 3600 + at * 60, polls=30, hinted=3, worker_seconds=120.0),
                HistoryPoint(now - 3600 + at * 60, kind="mail", found=3, waits=waits),
            )
        ]


Main = Callable[[Web, httpx.AsyncClient, Somebody], Awaitable[None]]


def in_lab(main: Main, scope: Any = "operate", traces: Path | None = None) -> None:
    async def run() -> None:
        access, sources = Somebody(scope), Sources(traces=traces)
        sources.add_queue(BusyQueue("shop"))
        web = Web(sources, access)
        async with browsing(application(web)) as http:
            try:
                await main(web, http, access)
            finally:
                await web.comparisons.close()

    asyncio.run(run())


async def compare(http: httpx.AsyncClient, access: Somebody, file: Any = None, **form: str) -> str:
    """Submit the form; the address that it leads to."""
    given = {"csrf": access.csrf, "action": "compare", **form}
    files = {"upload": file} if file else {"nothing": b""}
    answer = await http.post("/lab", data=given, files=files)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def ended(web: Web) -> ComparisonRun:
    run = web.comparisons.newest()[0]
    assert run.task is not None
    await run.task
    return run


def test_a_comparison_ends_in_a_report_with_a_table_and_charts() -> None:
    async def main(web: Web, http: httpx.AsyncClient, access: Somebody) -> None:
        where = await compare(
            http, access, traffic="queue", queue="shop", queue_hours="1",
            strategies="fixed 2s\nadaptive", price="own", own_price="0.005/1000",
            wait_price="0.01/3600",
        )  # fmt: skip
        assert "Starting" in (await http.get(where)).text or web.comparisons.newest()[0].progress
        run = await ended(web)
        assert run.error == ""
        page = (await http.get(where)).text
        assert run.facts is not None
        assert run.facts["arrivals"] == 180
        assert run.facts["headline"] in page
        assert "now, as measured" in page
        assert "1,800 polls an hour by 2.0 workers on average, 10 % of them" in page
        assert "The replay has no hints, so its jobs wait longer than yours" in page
        assert page.count('<svg viewBox="0 0 940') == 3
        assert "adaptive 100ms to 5s" in page
        sheet = (HERE / "static" / "app.css").read_text()
        used = set(re.findall(r"\b[sf]-[a-z_]+", page.partition("Cost against waiting")[2]))
        assert used > {"s-adaptive", "f-area", "f-none"}
        assert [each for each in sorted(used) if f".{each}" not in sheet] == []
        assert "Bursts within a minute are smoothed" in page
        report = await http.get(f"{where}/report.html")
        assert report.headers["content-disposition"].startswith("attachment")
        assert run.facts["headline"] in report.text
        assert where in (await http.get("/lab")).text
        deleted = await http.post(where, data={"csrf": access.csrf, "action": "delete"})
        assert deleted.headers["location"] == "/lab"
        assert (await http.get(where)).status_code == 404

    in_lab(main)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"strategies": "wurth"}, "did you mean 'worth'"),
        ({"strategies": "fixed 2s\nfixed 2s"}, ""),
        ({"price": "own", "own_price": "free"}, "Price 'free' is neither"),
        ({"wait_price": "0/1"}, "Wait price"),
        ({"hours": "1e9"}, "give a number from 0.01 to 744"),
        ({"workload": "x" * 500}, "There is no workload"),
        ({"traffic": "queue", "queue": "nowhere"}, "There is no queue 'nowhere'"),
        ({"traffic": "folder", "file": "../../etc/passwd"}, "There is no trace"),
        ({"traffic": "upload"}, "No file was chosen"),
        ({"strategies": ",".join(f"fixed {n}s" for n in range(1, 20))}, "at most 12"),
    ],
)
def test_a_wrong_form_is_refused_and_comes_back_filled_in(form: dict[str, str], said: str) -> None:
    async def main(web: Web, http: httpx.AsyncClient, access: Somebody) -> None:
        back = await compare(http, access, **form)
        if not said:  # a strategy that is given twice is compared once
            assert back.startswith("/lab/comparisons/")
            return
        [(action, why)] = access.noted
        assert action == "compare refused"
        assert said in why
        assert back.startswith("/lab?traffic=")
        again = await http.get(back)
        for name in form.keys() & {"hours", "wait_price"}:
            assert f'name="{name}"' in again.text
            assert f'value="{form[name]}"' in again.text
        assert web.comparisons.newest() == []

    in_lab(main)


def test_an_uploaded_bomb_is_refused_and_its_name_is_escaped() -> None:
    async def main(web: Web, http: httpx.AsyncClient, access: Somebody) -> None:
        bomb = gzip.compress((b"1" + b" " * 1023 + b"\n") * (33 * 1024))  # few lines: soon read
        where = await compare(http, access, (HOSTILE, bomb), traffic="upload")
        run = await ended(web)
        assert run.state == "failed"
        assert "more than 32 MiB of text" in run.error
        assert run.asked.folder is not None
        assert not run.asked.folder.exists()
        page = (await http.get(where)).text
        assert "<img" not in page
        assert "&lt;img src=x" in page

    in_lab(main)


def test_a_bad_line_of_an_upload_is_named_without_a_path_of_the_server() -> None:
    async def main(web: Web, http: httpx.AsyncClient, access: Somebody) -> None:
        await compare(http, access, ("mine.csv", b"1\n2\nx\n"), traffic="upload")
        run = await ended(web)
        assert run.error.startswith("mine.csv, line 3:")

    in_lab(main)


def test_too_large_a_request_is_refused_before_it_is_read() -> None:
    async def main(web: Web, http: httpx.AsyncClient, access: Somebody) -> None:
        size = lab_page.UPLOAD_MAX + lab_page.FORM_MAX + 1
        refused = await http.post(
            "/lab", content=b"", headers={"content-length": str(size), "content-type": "x"}
        )
        assert refused.status_code == 413
        assert "at most 16 MiB" in refused.text

        async def endless() -> Any:
            yield b'--b\r\nContent-Disposition: form-data; name="upload"; filename="x"\r\n\r\n'
            for _ in range(size // 65536 + 2):
                yield bytes(65536)

        headers = {"content-type": "multipart/form-data; boundary=b"}
        assert (await http.post("/lab", content=endless(), headers=headers)).status_code == 413

    in_lab(main)


def test_one_comparison_at_a_time_which_can_be_cancelled() -> None:
    async def main(web: Web, http: httpx.AsyncClient, access: Somebody) -> None:
        where = await compare(http, access, **LONG)
        run = web.comparisons.newest()[0]
        await compare(http, access, **LONG)
        assert access.noted[-1][0] == "compare refused"
        assert "still runs" in access.noted[-1][1]
        form = {"csrf": access.csrf, "action": "delete"}
        await http.post(where, data=form)
        assert access.noted[-1][0] == "delete refused"
        await http.post(where, data={**form, "action": "cancel"})
        assert run.state == "cancelled"
        assert "was cancelled" in (await http.get(where)).text

    in_lab(main)


@pytest.mark.parametrize("limit", ["time", "memory"])
def test_a_comparison_is_stopped_at_its_limits(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if limit == "memory":
        monkeypatch.setattr(comparisons, "MEMORY_LIMIT", 200 * 1024**2)

    async def main(web: Web, http: httpx.AsyncClient, access: Somebody) -> None:
        if limit == "time":
            web.comparisons = comparisons.Comparisons(web.sources.clock, 0.2)
        await compare(http, access, **LONG)
        run = await ended(web)
        assert run.state == "failed"
        if limit == "time":
            assert "took longer than 0.2 s" in run.error

    in_lab(main)


def test_viewers_who_may_only_read_see_reports_and_start_nothing() -> None:
    async def main(web: Web, http: httpx.AsyncClient, access: Somebody) -> None:
        page = (await http.get("/lab")).text
        assert 'value="compare"' not in page
        assert "you need the scope operate" in page
        form = {"csrf": access.csrf, "action": "compare"}
        assert (await http.post("/lab", data=form)).status_code == 403

    in_lab(main, scope="read")


def test_the_page_says_how_to_install_a_missing_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_page, "lab_missing", lambda: True)

    async def main(web: Web, http: httpx.AsyncClient, access: Somebody) -> None:
        assert "pollwise[lab]" in (await http.get("/lab")).text
        await compare(http, access)
        assert access.noted[-1][0] == "compare refused"

    in_lab(main)


def test_the_form_is_filled_for_a_queue_and_lists_the_traces_of_a_folder(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv.gz", "notes.md", ".hidden"):
        (tmp_path / name).write_text("1\n2\n")
    (tmp_path / "link.csv").symlink_to("/etc/passwd")

    async def main(web: Web, http: httpx.AsyncClient, access: Somebody) -> None:
        page = (await http.get("/lab?queue=shop")).text
        assert "What would shop cost?" in page
        assert 'value="queue" checked' in page
        assert "<option>a.csv</option><option>b.csv.gz</option></select>" in page

    in_lab(main, traces=tmp_path)


def test_the_form_offers_what_the_lab_has() -> None:
    assert tuple(synthetic.WORKLOADS) == lab_form.WORKLOADS
    assert get_args(stamps.Unit) == lab_form.UNITS
    assert get_args(metrics.Values) == lab_form.VALUES
