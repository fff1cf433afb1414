"""The page of a job."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from markupsafe import Markup

from pollwise.controller.attempts import attempts_of
from pollwise.controller.terms import ATTEMPTS, JobTerms
from pollwise.errors import PollwiseError
from pollwise.runtime.audit import AuditEntry, printable
from pollwise.runtime.jobs import ENDED, JobInfo, NewJob
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.runtime.payloads.envelope import shown as shown_plain
from pollwise.runtime.tracing.w3c import TRACEPARENT, TRACESTATE
from pollwise.web.pages.audit import name_of
from pollwise.web.pages.job.life import life_of, was_retried
from pollwise.web.pages.job.waiting import why_blocked, why_waiting
from pollwise.web.redaction import redacted, redacted_text
from pollwise.web.sources import QueueSource, Remembered
from pollwise.web.tree import raw, tree, visible
from pollwise.web.view import Acted, NotShown, Refused, View, Visit
from pollwise.worker.flows.taking import takes

if TYPE_CHECKING:
    from pollwise.web.app import Web
    from pollwise.web.controllers import ControllerSource, JobFiles

#: How many jobs, and how many drawn payloads, are remembered for live pages.
JOBS_REMEMBERED = 200
DRAWN_REMEMBERED = 32
#: For how long a job is remembered, in seconds.
JOB_REMEMBERED = 1.0
#: Seconds in which a job is not put again once more, so that a double click puts one job.
AGAIN_AFTER = 3.0
#: In a store that shows only dead jobs, how many of them are searched for a job.
DEAD_SEARCHED = 100
#: Headers that belong to one put, not to the job.
OF_ONE_PUT = frozenset({TRACEPARENT, TRACESTATE, "baggage", FLOW_HEADER})

_COLOURS = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Carried:
    """A payload, result or headers as the page shows them.

    notice: why it is not shown, or what is wrong with it.
    """

    tree: Markup | None = None
    raw: str = ""
    cut: bool = False
    notice: str = ""


class OneJobPage(View):
    """One job: its life, what it carries, its log and files, and what can be done with it."""

    name = "job"
    path = "/queues/{slug}/jobs/{id}"
    template = "job.html"
    actions: ClassVar[Mapping[str, str]] = {
        "retry": "operate", "cancel": "operate", "drop": "operate", "again": "operate",
    }  # fmt: skip

    def __init__(self, web: Web) -> None:
        super().__init__(web)
        self._jobs: dict[tuple[str, str], Remembered[JobInfo | None]] = {}
        self._drawn: dict[Hashable, Carried] = {}
        self._again: dict[tuple[str, str], float] = {}

    async def marker(self, visit: Visit) -> Hashable:
        source = source_of(visit)
        if not source.queue.capabilities.views:
            return "asked for only when the page is opened or redrawn"
        try:
            info = await self._job(source, visit.path["id"]).get()
            if info is None:
                return "gone"
            controller, log = controller_of(visit, source), 0
            if controller is not None and info.state == "leased":
                place = await controller.state.log_place(controller.folder_of(info.job.id))
                log = place.size
        except (PollwiseError, OSError) as error:
            return str(error)
        return info.state, info.since, info.worker, info.cancel, info.progress, info.errors, log

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source, job_id = source_of(visit), visit.path["id"]
        context: dict[str, Any] = {"source": source, "id": job_id, "info": None, "error": ""}
        try:
            info = await self._job(source, job_id).get()
            if info is None:
                raise NotShown(why_missing(source, job_id))
            return {**context, **await self._shown_job(visit, source, info)}
        except (PollwiseError, OSError) as error:
            return {**context, "error": str(error)}

    async def _shown_job(
        self, visit: Visit, source: QueueSource, info: JobInfo
    ) -> Mapping[str, Any]:
        job, terms = info.job, JobTerms.of(info.job)
        most = terms.attempts if ATTEMPTS in job.headers else None
        files, missing = await files_of(visit, source, info)
        attempts = attempts_of(info, (), 0, most or max(job.attempt, 1))
        names: Mapping[str, str] = {}
        if files is not None:
            attempts, names = list(files.attempts), files.names
        by = names.get(terms.created_by, terms.created_by)
        waits = "" if missing else await self._waits(visit, source, info)
        blocked = await why_blocked(source, info)
        retries = await self._retries(visit, info)
        life = life_of(info, attempts, self.web.sources.clock.epoch(), by, waits, blocked, retries)
        return {
            "info": info,
            "job": job,
            "kind": terms.kind,
            "terms": terms,
            "most": most,
            "by": by,
            "ended": info.state in ENDED,
            "since": {"ready": job.run_at, "leased": info.claimed_at}.get(
                info.state, info.since if info.state in ENDED else None
            ),
            "progress": info.progress if info.state in ("leased", "dead", "cancelled") else None,
            "note": redacted_text((info.progress and info.progress.note) or ""),
            "life": life,
            "last_error": next((each.name for each in reversed(life) if each.error), ""),
            "names": {key.partition(":")[2]: name for key, name in names.items()},
            "payload": self._drawing("payload", source, info, payload_of(info)),
            "headers": self._drawing("headers", source, info, (dict(terms.headers), "")),
            "result": self._drawing("result", source, info, result_of(source, info)),
            "can": source.queue.capabilities,
            **await self._flow(source, info),
            "why_not_again": why_not_again(info),
            "of_key": urlencode({"key": job.key}) if job.key else "",
            "files": files,
            "files_missing": missing,
            "log": "" if files is None else shown_log(files),
        }

    async def _retries(self, visit: Visit, info: JobInfo) -> list[tuple[float, str]]:
        """When somebody retried the job here or at the controller, and who, the oldest first.

        Only people who may operate see names, as in the audit log.
        """
        state = self.web.access.state
        if state is None or not was_retried(info):
            return []
        root = visit.request.scope.get("root_path", "")
        path = visit.request.url.path.removeprefix(root)
        whats = {path, info.job.id} if controller_of(visit, source_of(visit)) else {path}
        found: list[AuditEntry] = []
        for what in whats:
            found += await state.list_audit(action="job.retry", what=printable(what), limit=10)
        named = visit.viewer.may("operate")
        known = [(each.at, name_of(each.who) if named else "") for each in found]
        return sorted(each for each in known if each[0] >= info.job.created_at)

    async def _flow(self, source: QueueSource, info: JobInfo) -> Mapping[str, Any]:
        """The name of its flow. Of a dead job: the jobs of `on_failure` that it has started, and
        how many of its flow wait for it."""
        name = info.job.headers.get(FLOW_HEADER, "") if source.queue.capabilities.flows else ""
        found: dict[str, Any] = {"flow": name, "started": [], "held": 0}
        if name and info.state == "dead" and (flow := await source.queue.flow(info.job.id)):
            found["started"] = flow.started_by(info.job.id)
            found["held"] = sum(
                info.job.id in each.after and each.info.state == "blocked" for each in flow.jobs
            )
        return found

    async def _waits(self, visit: Visit, source: QueueSource, info: JobInfo) -> str:
        """Why a ready job does not run yet."""
        if info.state != "ready":
            return ""
        controller = controller_of(visit, source)
        if controller is None:
            return why_waiting(info.job, source, await source.snapshot(live=True))
        kinds = await controller.waiting()
        same = (each.waiting_for for each in kinds if each.queue_kind == info.job.kind)
        why = next(same, None)
        return f"No agent can take it: {why}." if why else "It waits for a free agent."

    # What the job carries

    def _drawing(
        self, what: str, source: QueueSource, info: JobInfo, shown: tuple[Any, str]
    ) -> Carried:
        """What is drawn once for a job: live pages ask for it each second."""
        value, notice = shown
        if value is None and what != "payload":
            return Carried(notice=notice)
        if notice and value is None:
            return Carried(notice=notice)
        ends = info.since if what == "result" else None
        known = (what, source.slug, info.job.id, info.job.created_at, ends, notice)
        if known not in self._drawn:
            if len(self._drawn) >= DRAWN_REMEMBERED:
                self._drawn.pop(next(iter(self._drawn)))
            hidden = redacted_part(self.web, value, what)
            text, cut = raw(hidden)
            self._drawn[known] = Carried(tree(hidden, what), visible(text, "\n"), cut, notice)
        return self._drawn[known]

    def _job(self, source: QueueSource, job_id: str) -> Remembered[JobInfo | None]:
        known = (source.slug, job_id)
        if known not in self._jobs:
            if len(self._jobs) >= JOBS_REMEMBERED:
                self._jobs.pop(next(iter(self._jobs)))

            async def read() -> JobInfo | None:
                return await job_of(source, job_id)

            self._jobs[known] = Remembered(read, self.web.sources.clock, JOB_REMEMBERED)
        return self._jobs[known]

    # What can be done

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str | Acted:
        source, job_id = source_of(visit), visit.path["id"]
        self._jobs.pop((source.slug, job_id), None)
        source.forget()
        if action == "again":
            known, now = (source.slug, job_id), self.web.sources.clock.now()
            self._again = {k: at for k, at in self._again.items() if now - at < AGAIN_AFTER}
            if known in self._again:
                raise Refused(f"Job {job_id} was put again a moment ago. Wait to put one more.")
            self._again[known] = now
            try:
                return await self._put_again(visit, source, job_id)
            except BaseException:
                self._again.pop(known, None)
                raise
        if action == "retry":
            return await self._retry(visit, source, job_id, form.get("anyway") == "1")
        if action == "drop":
            if not await source.queue.drop([job_id]):
                raise Refused(f"Job {job_id} was not dropped: only dead jobs can be.")
            return f"Job {job_id} was deleted."
        state = (await source.queue.cancel([job_id])).get(job_id)
        if state is None:
            raise Refused(f"There is no job {job_id} any more.")
        if state == "leased":
            return f"Job {job_id} was asked to cancel; its worker stops it."
        if state != "cancelled":
            raise Refused(f"Job {job_id} was not cancelled: it is {state}.")
        said = f"Job {job_id} is cancelled."
        if await job_of(source, job_id) is not None:
            return said
        # A queue that keeps no ended jobs has deleted it, and its page with it.
        root = visit.request.scope.get("root_path", "")
        return Acted(said, root + self.web.path_of("queue", slug=source.slug))

    async def _retry(self, visit: Visit, source: QueueSource, job_id: str, anyway: bool) -> str:
        controller = controller_of(visit, source)
        if controller is not None and controller.running is not None:
            done: int = await controller.running.jobs.retry(job_id, anyway=anyway)
        else:
            done = await source.queue.retry([job_id], anyway=anyway)
        if not done:
            raise Refused(
                f"Job {job_id} was not retried: only dead, done and cancelled jobs can be. It "
                "waits or runs, or it is not kept any more."
            )
        return f"Job {job_id} runs again, with fresh attempts."

    async def _put_again(self, visit: Visit, source: QueueSource, job_id: str) -> Acted:
        info = await job_of(source, job_id)
        if info is None:
            raise Refused(f"There is no job {job_id} any more.")
        if why := why_not_again(info):
            raise Refused(why)
        new, controller = copy_of(info, visit.viewer.who), controller_of(visit, source)
        if controller is not None and controller.running is not None:
            made, _ = await controller.running.jobs.put(new)
            new_id = made.job.id
        else:
            [new_id] = await source.queue.put(new)
        root = visit.request.scope.get("root_path", "")
        return Acted(
            f"Job {job_id} was put again as job {new_id}.",
            root + self.web.path_of("job", slug=source.slug, id=new_id),
        )


def source_of(visit: Visit) -> QueueSource:
    """The queue in the address of a page."""
    source = visit.web.sources.queues.get(visit.path["slug"])
    if source is None:
        raise NotShown(f"There is no queue {visit.path['slug'][:80]} here.")
    return source


def why_missing(source: QueueSource, job_id: str) -> str:
    """Why a job is not shown."""
    if not source.queue.capabilities.views:
        return (
            f"Job {job_id[:80]} is not among the first {DEAD_SEARCHED} dead jobs of the queue "
            f"{source.title}. Its store shows no other jobs."
        )
    return (
        f"There is no job {job_id[:80]} in the queue {source.title}. It may have ended and not "
        "been kept, or it was dropped."
    )


async def job_of(source: QueueSource, job_id: str) -> JobInfo | None:
    """A job by its id. In a store that shows dead jobs only, some of these are searched for it."""
    queue = source.queue
    if queue.capabilities.views:
        return await queue.get(job_id)
    dead = await queue.jobs("dead", limit=DEAD_SEARCHED)
    return next((info for info in dead if info.job.id == job_id), None)


def controller_of(visit: Visit, source: QueueSource) -> ControllerSource | None:
    """The controller, if the queue is its own: then it has the logs and files of the jobs."""
    controller = visit.web.sources.controller_source()
    return controller if controller is not None and controller.shown is source else None


async def files_of(visit: Visit, source: QueueSource, info: JobInfo) -> tuple[JobFiles | None, str]:
    """The log and the files of a job, and why they cannot be shown."""
    controller = controller_of(visit, source)
    if controller is None:
        return None, ""
    try:
        return await controller.files_of(info), ""
    except (PollwiseError, OSError) as error:
        return None, str(error)


def shown_log(files: JobFiles) -> str:
    """The end of a log, from the beginning of a line, without colours and secrets."""
    text = files.log.replace("\r\n", "\n").replace("\r", "\n")
    if files.log_start:
        text = text.partition("\n")[2] or text
    return visible(redacted_text(_COLOURS.sub("", text)), "\n\t")


def redacted_part(web: Web, value: Any, what: str) -> Any:
    """What a job carries, without the secrets in it."""
    return redacted(value, web.rules, what)


def payload_of(info: JobInfo) -> tuple[Any, str]:
    """The payload to show, and a remark about it."""
    job = info.job
    if job.sealed is not None:
        about = f"{job.sealed.strip('<>').capitalize()}. It is not decoded here."
        return None, f"{about} {job.unreadable}." if job.unreadable else about
    return job.payload, (job.unreadable or "")


def result_of(source: QueueSource, info: JobInfo) -> tuple[Any, str]:
    """The result to show, and a remark about it."""
    codec = source.queue.codec
    if info.result is None:
        return None, ""
    if info.job.sealed is not None or (codec is not None and codec.secret):
        return None, "The result is encrypted. It is not decoded here."
    return shown_plain(info.result), ""


def why_not_again(info: JobInfo) -> str:
    """Why a job cannot be put again from here; "" if it can."""
    job = info.job
    if job.sealed is not None or job.locked is not None:
        return "Its payload is encrypted and is not decoded here; put it again where the key is."
    if job.unreadable is not None:
        return f"It cannot be put again: {job.unreadable}."
    if takes(job):
        return "It takes results from the jobs before it in its flow; put the whole flow again."
    if JobTerms.of(job).inputs is not None:
        return "It came with files, which are deleted with it; put it again together with them."
    return ""


def copy_of(info: JobInfo, by: str) -> NewJob:
    """The job as a new one: without `unique`, delay, its flow and the trace of its first put."""
    job = info.job
    headers = {name: value for name, value in job.headers.items() if name.lower() not in OF_ONE_PUT}
    if ATTEMPTS in headers:
        headers = replace(JobTerms.of(replace(job, headers=headers)), created_by=by).all_headers()
    return NewJob(job.kind, job.payload, key=job.key, priority=job.priority, headers=headers)
