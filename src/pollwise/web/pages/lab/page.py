"""The pages of the lab: what to compare, and the report of each comparison."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from pollwise.durations import short
from pollwise.errors import ConfigError, MissingExtra, PollwiseError
from pollwise.lab.prices import DATED, PRICES, REGION
from pollwise.version import __version__
from pollwise.web.comparisons import (
    KEPT_FOR,
    RUNS_KEPT,
    TIME_LIMIT,
    ComparisonRequest,
    ComparisonRun,
    Comparisons,
    lab_missing,
)
from pollwise.web.downloads import Download, saved
from pollwise.web.pages.lab import form as lab_form
from pollwise.web.pages.lab.form import LabForm
from pollwise.web.security.forms import check_kind
from pollwise.web.view import Acted, Address, NotShown, Refused, View, Visit

#: The largest uploaded file, and the largest form around it, in bytes.
UPLOAD_MAX = 16 * 1024**2
FORM_MAX = 64 * 1024
#: How long an upload may take, in seconds.
UPLOAD_WITHIN = 120.0


class LabAddress(Address):
    """A page or a file about comparisons."""

    def run_of(self, visit: Visit) -> ComparisonRun:
        run = self.comparisons.get(str(visit.path["id"]))
        if run is None:
            raise NotShown(
                f"There is no such comparison. The last {RUNS_KEPT} are kept, for "
                f"{short(KEPT_FOR)}, until the web interface restarts."
            )
        return run

    @property
    def comparisons(self) -> Comparisons:
        return self.web.comparisons


class LabPage(LabAddress, View):
    """The form, and the comparisons that are kept."""

    name = "lab"
    path = "/lab"
    template = "lab/page.html"
    menu = "Lab"
    actions: ClassVar[Mapping[str, str]] = {"compare": "operate"}

    async def marker(self, visit: Visit) -> Hashable:
        return tuple((run.id, run.state, run.progress) for run in self.comparisons.newest())

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        sources = self.web.sources
        form = LabForm.of(visit.query, sources.queues)
        files = await asyncio.to_thread(lab_form.trace_files, sources.traces)
        queues = {
            slug: source.title
            for slug, source in sources.queues.items()
            if source.can.history and not source.for_agents
        }
        return {
            "missing": str(MissingExtra("the lab", "lab")) if lab_missing() else None,
            "form": form,
            "chosen_queue": sources.queues.get(form.queue) if form.traffic == "queue" else None,
            "workloads": lab_form.WORKLOADS,
            "queues": queues,
            "queue_hours": lab_form.QUEUE_HOURS,
            "files": files,
            "units": lab_form.UNITS,
            "values": lab_form.VALUES,
            "prices": PRICES.values(),
            "own_price": form.price not in PRICES,
            "dated": DATED,
            "region": REGION,
            "upload_mib": UPLOAD_MAX // 1024**2,
            "time_limit": TIME_LIMIT,
            "runs": self.comparisons.newest(),
        }

    async def _posted(self, visit: Visit) -> Response:
        """Read the form with its file, within bounds, before the base class checks it.

        Starlette remembers a form that was read, so the check sees the same.
        """
        visit.viewer.must_have("operate")  # before a large file is read
        self.web.access.check_writable()
        try:
            request = await _read_form(visit.request)
        except HTTPException as error:
            if error.status_code != 413:
                raise
            said = f"The file is too large: at most {UPLOAD_MAX // 1024**2} MiB can be uploaded."
            return await self.web.pages.error(visit.request, 413, said, visit.viewer)
        try:
            return await super()._posted(replace(visit, request=request))
        finally:
            await request.close()

    async def act(self, visit: Visit, action: str, given: Mapping[str, str]) -> Acted:
        if lab_missing():
            raise Refused(str(MissingExtra("the lab", "lab")))
        values = dict(given)
        if values.get("price") == "own":
            values["price"] = values.get("own_price", "")
        form = LabForm.of(values, self.web.sources.queues)
        root = visit.request.scope.get("root_path", "")
        back = f"{root}{self.web.path_of('lab')}?{form.query()}"
        try:
            self.comparisons.check_room(visit.viewer.who)
            asked = await self._asked(visit, form, back)
        except (ConfigError, Refused) as error:
            text = str(error)
            raise Refused(f"{text[:1].upper()}{text[1:]}", back) from None
        except (PollwiseError, OSError) as error:
            raise Refused(f"The store does not answer: {error}", back) from None
        try:
            run = self.comparisons.start(visit.viewer.who, asked)
        except Refused:
            if asked.folder is not None:
                shutil.rmtree(asked.folder, ignore_errors=True)
            raise
        to = root + self.web.path_of("lab_run", id=run.id)
        return Acted(f"Comparing the strategies on {asked.title}.", to)

    async def _asked(self, visit: Visit, form: LabForm, back: str) -> ComparisonRequest:
        line, terms = form.policies()
        sources = self.web.sources
        if form.traffic == "queue":
            title, trace, about, measured = await lab_form.queue_request(
                form, sources.queues.get(form.queue), terms
            )
            return lab_form.asked(form, line, title, trace, back, about=about, measured=measured)
        if form.traffic == "folder":
            folder = sources.traces
            names = await asyncio.to_thread(lab_form.trace_files, folder)
            if folder is None or form.file not in names:
                raise ConfigError(f"there is no trace {form.file[:60]!r} in the folder of traces")
            title, trace = lab_form.file_request(form, folder / form.file, form.file)
            return lab_form.asked(form, line, title, trace, back)
        if form.traffic == "upload":
            file = (await visit.request.form()).get("upload")
            if not isinstance(file, UploadFile) or not file.filename:
                raise ConfigError("no file was chosen; choose a trace file to upload")
            name = Path(file.filename.replace("\\", "/")).name[:100] or "trace"
            lab_form.file_request(form, Path(name), name)  # refused before it is copied
            path = await lab_form.kept_upload(file.file)
            title, trace = lab_form.file_request(form, path, name)
            return lab_form.asked(form, line, title, trace, back, folder=path.parent)
        title, trace = lab_form.workload_request(form)
        return lab_form.asked(form, line, title, trace, back)


class LabRunPage(LabAddress, View):
    """A comparison: how far it is, and then its report."""

    name = "lab_run"
    path = "/lab/comparisons/{id}"
    template = "lab/comparison.html"
    actions: ClassVar[Mapping[str, str]] = {"cancel": "operate", "delete": "operate"}

    async def marker(self, visit: Visit) -> Hashable:
        run = self.comparisons.get(str(visit.path["id"]))
        return None if run is None else (run.state, run.progress)

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        run = self.run_of(visit)
        if run.facts is None:
            return {"run": run, "facts": None}
        if run.report is None:
            run.report = await asyncio.to_thread(_report, run, run.facts)
        return {"run": run, **run.report}

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str | Acted:
        run = self.comparisons.get(str(visit.path["id"]))
        if run is None:
            raise Refused("This comparison is not kept any more.")
        if action == "cancel":
            stopped = await self.comparisons.cancel(run)
            return "The comparison is cancelled." if stopped else "It had ended already."
        if run.state == "running":
            raise Refused("The comparison still runs. Cancel it first.")
        self.comparisons.remove(run)
        back = visit.request.scope.get("root_path", "") + self.web.path_of("lab")
        return Acted(f"The comparison on {run.asked.title} is deleted.", back)


class LabReport(LabAddress, Download):
    """The report of a comparison as one HTML file, as `pollwise lab compare` writes it."""

    name = "lab_report"
    path = "/lab/comparisons/{id}/report.html"

    async def file(self, visit: Visit) -> Response:
        run = self.run_of(visit)
        if run.facts is None:
            raise NotShown("This comparison has no report.")
        html = await asyncio.to_thread(_page, run, run.facts)
        return saved("report.html", html, kind="text/html; charset=utf-8")


def _page(run: ComparisonRun, facts: Mapping[str, Any]) -> str:
    from pollwise.lab.report.page import page
    from pollwise.web.pages.lab.report import command_of

    return page(facts, __version__, command_of(run.asked))


def _report(run: ComparisonRun, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The values for the report. The lab is imported now, because it needs numpy."""
    from pollwise.lab.report.compare import table
    from pollwise.lab.texts import brief, money
    from pollwise.web.pages.lab import report

    return {
        "facts": facts,
        "rows": table(facts),
        # The place of each limit in a row. The middle one would make the table too wide.
        "columns": [
            (limit, place)
            for place, limit in enumerate(facts["limits"], 9)
            if limit["name"] != "sees arrivals"
        ],
        "best": next(each for each in facts["policies"] if each["take"]),
        "tones": report.tones_of(facts),
        "money": money,
        "brief": brief,
        "cost_charts": [report.cost_chart(facts, each) for each in ("wait_mean_s", "wait_p95_s")],
        "rates_chart": report.rates_chart(facts),
        "waits_chart": report.waits_chart(facts, run.asked.trace.get("since", 0.0)),
        "command": report.command_of(run.asked),
    }


async def _read_form(request: Request) -> Request:
    """The same request, whose form was read with one file and is remembered; 413 if too large."""
    most = UPLOAD_MAX + FORM_MAX
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > most:
        raise HTTPException(413)
    check_kind(request)
    came = 0

    async def receive() -> Message:
        nonlocal came
        message = await request.receive()
        came += len(message.get("body", b""))
        if came > most:
            raise HTTPException(413)
        return message

    bounded = Request(request.scope, receive)
    try:
        async with asyncio.timeout(UPLOAD_WITHIN):
            await bounded.form(max_files=1, max_fields=50, max_part_size=FORM_MAX)
    except TimeoutError:
        raise HTTPException(408, "The form did not arrive in time.") from None
    return bounded
