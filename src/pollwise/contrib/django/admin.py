"""Jobs in Django's admin: a list with filters by queue, state and kind; retry, cancel and drop.

Jobs are read through their queue, page by page, newest first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone

from pollwise.contrib.django.models import QueuedJob
from pollwise.contrib.django.queues import DjangoQueue, project_queues
from pollwise.contrib.django.results import moment
from pollwise.errors import PollwiseError
from pollwise.queues.views import JobFilter, JobPage, Stats
from pollwise.runtime.jobs import STATES, JobInfo
from pollwise.runtime.payloads.envelope import shown

#: How many jobs a page shows.
PER_PAGE = 50
#: How many characters of a payload, a result or an error a page of one job shows.
SHOWN_MAX = 20_000
#: The permission that each action needs, what it has done, and why it may not have.
ACTIONS = {
    "retry": ("change", "retried", "only jobs that have ended can be retried"),
    "cancel": ("change", "cancelled or asked to stop", "jobs that have ended stay as they are"),
    "drop": ("delete", "dropped", "only dead jobs can be dropped"),
}


@admin.register(QueuedJob)
class JobAdmin(admin.ModelAdmin):
    """The jobs of all queues of the project."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        view, name = self.admin_site.admin_view, "pollwise_queuedjob"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("<path:object_id>/change/", view(self.change_view), name=f"{name}_change"),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The list of one queue, and what its actions do."""
        queues = self._queues(request)
        label = request.GET.get("queue") or next(iter(queues), "")
        if queues and label not in queues:
            raise Http404(f"no queue {label!r}")
        if request.method == "POST":
            ids = request.POST.getlist("job")[:PER_PAGE]
            return self._act(request, label, queues.get(label), ids, request.get_full_path())
        listed = JobList(request, queues, label)
        context = {
            **self._context(request, "Jobs"),
            "list": listed,
            "actions": self._allowed(request),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "pollwise/admin_jobs.html", context)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """One job."""
        label, _, job_id = unquote(object_id).partition(":")
        queue = self._queues(request).get(label)
        if queue is None:
            raise Http404(f"no queue {label!r}")
        if request.method == "POST":
            dropped = request.POST.get("action") == "drop"
            back = self._list_url(label) if dropped else request.get_full_path()
            return self._act(request, label, queue, [job_id], back)
        try:
            info = queue.call("get", job_id)
        except PollwiseError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(self._list_url(label))
        if info is None:
            raise Http404(f"no job {job_id!r}")
        context = {
            **self._context(request, f"Job {info.job.id}"),
            "info": info,
            "rows": rows_of(info, label),
            "failures": [
                (when(each.at), each.attempt, each.error, each.traceback or "")
                for each in reversed(info.errors)
            ],
            "actions": self._allowed(request, info),
            "list_url": self._list_url(label),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "pollwise/admin_job.html", context)

    def _queues(self, request: HttpRequest) -> dict[str, DjangoQueue]:
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            return project_queues()
        except PollwiseError as error:
            self.message_user(request, str(error), messages.ERROR)
            return {}

    def _context(self, request: HttpRequest, title: str) -> dict[str, Any]:
        return {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "has_view_permission": True,
        }

    def _list_url(self, label: str) -> str:
        return f"{reverse('admin:pollwise_queuedjob_changelist')}?{urlencode({'queue': label})}"

    # Actions

    def _allowed(self, request: HttpRequest, info: JobInfo | None = None) -> list[str]:
        """The actions that this user may do; with a job, those that change it."""
        able = {"change": self.has_change_permission, "delete": self.has_delete_permission}
        fits: dict[str, Callable[[JobInfo], bool]] = {
            "retry": lambda info: info.state in ("dead", "done", "cancelled"),
            "cancel": lambda info: info.state in ("ready", "delayed", "blocked", "leased"),
            "drop": lambda info: info.state == "dead",
        }
        return [
            action
            for action, (permission, *_) in ACTIONS.items()
            if able[permission](request) and (info is None or fits[action](info))
        ]

    def _act(
        self,
        request: HttpRequest,
        label: str,
        queue: DjangoQueue | None,
        ids: list[str],
        back: str,
    ) -> HttpResponse:
        action = request.POST.get("action", "")
        if action not in ACTIONS:
            self.message_user(request, "No action selected.", messages.WARNING)
            return HttpResponseRedirect(back)
        if action not in self._allowed(request):
            raise PermissionDenied
        if not ids or queue is None:
            self.message_user(request, "Select jobs first.", messages.WARNING)
            return HttpResponseRedirect(back)
        if action == "drop" and "sure" not in request.POST:
            context = {**self._context(request, "Are you sure?"), "ids": ids, "back": back}
            return TemplateResponse(request, "pollwise/admin_drop.html", context)
        try:
            done = queue.call(action, ids)
        except PollwiseError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(back)
        if isinstance(done, dict):  # a cancel returns states
            done = sum(state in ("cancelled", "leased") for state in done.values())
        for job_id in ids if done else ():
            self.log_change(request, QueuedJob(id=f"{label}:{job_id}"), f"Asked to {action} it.")
        _, did, why = ACTIONS[action]
        if done == len(ids):
            jobs = "1 job" if done == 1 else f"{done} jobs"
            self.message_user(request, f"{jobs} {did}.", messages.SUCCESS)
        else:
            self.message_user(request, f"{done} of {len(ids)} {did}: {why}.", messages.WARNING)
        return HttpResponseRedirect(back)


class JobList:
    """A page of the jobs of one queue, and its filters.

    error: why there is none.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "Job",
        "Kind and last error",
        "State",
        "Since",
        "Attempts",
        "Worker",
    )

    def __init__(self, request: HttpRequest, queues: dict[str, DjangoQueue], label: str) -> None:
        self._label = label
        self.state: str = request.GET.get("state", "")
        self.kind: str = request.GET.get("kind", "")
        self.after: str = request.GET.get("after", "")
        self.error: str = ""
        self.jobs: list[dict[str, Any]] = []
        self.filters: list[tuple[str, list[tuple[str, str, bool]]]] = []
        self.next_url: str = ""
        self.first_url: str = self._url(after="") if self.after else ""
        if label:
            try:
                self._read(queues[label])
            except PollwiseError as error:
                self.error = str(error)
        if len(queues) > 1:
            choices = [(name, self._url(queue=name), name == label) for name in queues]
            self.filters.insert(0, ("queue", choices))

    def _read(self, queue: DjangoQueue) -> None:
        # A store without views shows only its dead jobs.
        state: Any = self.state or (None if queue.capabilities.views else "dead")
        kind = (self.kind,) if self.kind else None
        chosen = JobFilter(state or None, kind, limit=PER_PAGE, after=self.after or None)
        page: JobPage = queue.call("page", chosen)
        if page.next is not None:
            self.next_url = self._url(after=page.next)
        self.jobs = [row_of(info, self._label) for info in page.jobs]
        kinds: dict[str, Stats] = queue.call("stats_by_kind")
        self._filter_states(kinds if not self.kind else {self.kind: kinds.get(self.kind)})
        self._filter_kinds(kinds)

    def _filter_states(self, kinds: dict[str, Any]) -> None:
        counts = {
            state: sum(getattr(stats, state) for stats in kinds.values() if stats)
            for state in STATES
        }
        choices = [("All", self._url(state="", after=""), not self.state)]
        choices += [
            (f"{state} ({count})", self._url(state=state, after=""), self.state == state)
            for state, count in counts.items()
            if count or self.state == state
        ]
        self.filters.append(("state", choices))

    def _filter_kinds(self, kinds: dict[str, Stats]) -> None:
        counts = {
            kind: getattr(stats, self.state)
            if self.state
            else sum(getattr(stats, each.name) for each in fields(stats) if each.name in STATES)
            for kind, stats in kinds.items()
        }
        counts.setdefault(self.kind, 0)
        choices = [("All", self._url(kind="", after=""), not self.kind)]
        choices += [
            (f"{kind} ({count})", self._url(kind=kind, after=""), self.kind == kind)
            for kind, count in sorted(counts.items())
            if kind and (count or self.kind == kind)
        ]
        self.filters.append(("kind", choices))

    def _url(self, **changes: str) -> str:
        if "queue" in changes:
            return "?" + urlencode(changes)
        chosen = {"queue": self._label, "state": self.state, "kind": self.kind, **changes}
        return "?" + urlencode({key: value for key, value in chosen.items() if value})


def row_of(info: JobInfo, label: str) -> dict[str, Any]:
    """A job for a line of the list."""
    url = reverse("admin:pollwise_queuedjob_change", args=[quote(f"{label}:{info.job.id}")])
    return {
        "id": info.job.id,
        "url": url,
        "kind": info.job.kind,
        "state": "leased, cancelling" if info.cancel else info.state,
        "since": when(info.since),
        "attempt": info.job.attempt,
        "worker": info.worker or "",
        "error": (info.error or "").partition("\n")[0][:200],
    }


def rows_of(info: JobInfo, label: str) -> list[tuple[str, Any, bool]]:
    """What a page of one job shows: the name, the value, and whether it is a block of text."""
    job, progress = info.job, info.progress
    rows: list[tuple[str, Any, bool]] = [
        ("Queue", label, False),
        ("Kind", job.kind, False),
        ("State", row_of(info, label)["state"], False),
        ("Since", when(info.since), False),
        ("Put", when(job.created_at), False),
        ("Due", when(job.run_at), False),
        ("Attempts", job.attempt, False),
        ("Priority", job.priority, False),
        ("Key", job.key, False),
        ("Unique", job.unique, False),
        ("Worker", info.worker, False),
    ]
    if progress is not None:
        share = "" if progress.fraction is None else f"{progress.fraction:.0%} "
        rows.append(("Progress", f"{share}{progress.note or ''}".strip(), False))
    if job.headers:
        rows.append(("Headers", _text(dict(job.headers)), True))
    rows.append(("Payload", job.unreadable or _text(job.payload), True))
    if info.result is not None:
        rows.append(("Result", _text(info.result), True))
    return [row for row in rows if row[1] is not None and row[1] != ""]


def when(seconds: float) -> str:
    """A time in the current time zone."""
    at = moment(seconds)
    local = timezone.localtime(at) if timezone.is_aware(at) else at
    return f"{local:%Y-%m-%d %H:%M:%S}"


def _text(value: Any) -> str:
    text = json.dumps(shown(value), indent=2, ensure_ascii=False)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}\n… ({len(text)} characters)"
