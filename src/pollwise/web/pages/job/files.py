"""Files of a job to save: what it carries as JSON, its log, its artefacts and its inputs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.responses import Response

from pollwise.controller.http.answers import HttpError
from pollwise.runtime.jobs import JobInfo
from pollwise.web.downloads import Download, saved
from pollwise.web.pages.job.page import (
    controller_of,
    job_of,
    payload_of,
    redacted_part,
    result_of,
    source_of,
    why_missing,
)
from pollwise.web.redaction import redacted_text
from pollwise.web.view import NotShown, Visit

if TYPE_CHECKING:
    from pollwise.web.controllers import ControllerSource

#: The media type of files whose contents are unknown: no browser shows them.
BYTES = "application/octet-stream"
#: How many bytes of a log are read at a time.
PIECE = 256 * 1024


class JobRaw(Download):
    """The payload, the result or the headers of a job as JSON text."""

    name = "job_raw"
    path = "/queues/{slug}/jobs/{id}/raw/{what}"

    async def file(self, visit: Visit) -> Response:
        source, what = source_of(visit), visit.path["what"]
        info = await _found(visit)
        parts = {
            "payload": payload_of(info),
            "headers": (dict(info.job.headers), ""),
            "result": result_of(source, info),
        }
        if what not in parts:
            raise NotShown(f"A job has no {what[:40]} to save.")
        value, notice = parts[what]
        if value is None and notice:
            raise NotShown(notice)
        text = json.dumps(redacted_part(visit.web, value, what), ensure_ascii=False, indent=2)
        return saved(f"job-{info.job.id}-{what}.json.txt", text + "\n")


class JobLog(Download):
    """The whole log of a job, or that of one attempt."""

    name = "job_log"
    path = "/queues/{slug}/jobs/{id}/log"

    async def file(self, visit: Visit) -> Response:
        controller = controller_of(visit, source_of(visit))
        if controller is None:
            raise NotShown("Only the jobs of a controller have logs.")
        info = await _found(visit)
        start, stop, files = 0, 0, await controller.files_of(info)
        if number := visit.query.get("attempt", ""):
            parts = {f"{each.attempt}": each for each in files.attempts if each.log_end}
            if number not in parts:
                raise NotShown(f"There is no log of attempt {number[:20]}.")
            start, stop = parts[number].log_start or 0, parts[number].log_end or 0
        else:
            stop = files.place.size
        pieces = _log(controller, info.job.id, start, stop)
        return saved(f"job-{info.job.id}.log.txt", pieces)


async def _log(
    controller: ControllerSource, job_id: str, start: int, stop: int
) -> AsyncIterator[bytes]:
    """The bytes of a log in pieces that end with a line, without secrets."""
    folder, rest = controller.folder_of(job_id), b""
    while start < stop:
        data = await controller.state.read_log(folder, start, min(stop - start, PIECE))
        if not data:
            break
        start += len(data)
        lines, line_end, rest = (rest + data).rpartition(b"\n")
        if line_end:
            yield _without_secrets(lines + line_end)
        elif len(rest) >= PIECE:  # a line without end
            yield _without_secrets(rest)
            rest = b""
    if rest:
        yield _without_secrets(rest)


def _without_secrets(lines: bytes) -> bytes:
    return redacted_text(lines.decode(errors="replace")).encode()


class JobFile(Download):
    """A file that a run made, or that came with the job."""

    name = "job_file"
    path = "/queues/{slug}/jobs/{id}/files/{what}/{name:path}"

    async def file(self, visit: Visit) -> Response:
        controller = controller_of(visit, source_of(visit))
        what, name = visit.path["what"], visit.path["name"]
        if controller is None or what not in ("artefacts", "inputs"):
            raise NotShown("There is no such file.")
        files = await controller.files_of(await _found(visit))
        rows = files.artefacts if what == "artefacts" else files.inputs
        row = next((each for each in rows if each.name == name), None)
        if row is None:
            raise NotShown(f"This job has no file {name[:80]}.")
        if controller.running is None:
            raise NotShown("Files can be saved only where their controller runs.")
        pieces = controller.running.artefacts.read(row)
        try:
            first = await anext(pieces, b"")
        except HttpError as gone:
            raise NotShown(gone.message) from None
        return saved(row.name, _again(first, pieces), row.size, BYTES)


async def _again(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


async def _found(visit: Visit) -> JobInfo:
    source, job_id = source_of(visit), visit.path["id"]
    info = await job_of(source, job_id)
    if info is None:
        raise NotShown(why_missing(source, job_id))
    return info
