"""The pages of the web interface, one module each: a `View` and the functions that it needs."""

from __future__ import annotations

from pollwise.web.pages.audit import AuditLogPage
from pollwise.web.pages.controller import AgentPage, ControllerPage
from pollwise.web.pages.fleet.alerts import FleetAlertsPage
from pollwise.web.pages.fleet.maintenance import FleetMaintenancePage
from pollwise.web.pages.fleet.page import FleetPage
from pollwise.web.pages.fleet.target import FleetTargetPage
from pollwise.web.pages.job.files import JobFile, JobLog, JobRaw
from pollwise.web.pages.job.flow import FlowPage
from pollwise.web.pages.job.page import OneJobPage
from pollwise.web.pages.lab.page import LabPage, LabReport, LabRunPage
from pollwise.web.pages.outbox.page import OutboxPage
from pollwise.web.pages.outbox.record import RecordPage
from pollwise.web.pages.queues.overview import OverviewPage
from pollwise.web.pages.queues.page import QueuePage
from pollwise.web.pages.queues.schedules import SchedulesPage
from pollwise.web.pages.status.page import StatusPage
from pollwise.web.pages.tokens import TokensPage
from pollwise.web.pages.workers import OneWorkerPage, WorkersPage
from pollwise.web.view import Address

#: Every page, in the order of their routes.
VIEWS: tuple[type[Address], ...] = (
    OverviewPage,
    QueuePage,
    SchedulesPage,
    OneJobPage,
    FlowPage,
    JobRaw,
    JobLog,
    JobFile,
    WorkersPage,
    OneWorkerPage,
    ControllerPage,
    AgentPage,
    LabPage,
    LabRunPage,
    LabReport,
    OutboxPage,
    RecordPage,
    FleetPage,
    FleetAlertsPage,
    FleetMaintenancePage,
    FleetTargetPage,
    TokensPage,
    AuditLogPage,
    StatusPage,
)
