"""The pages of the web interface, one module each: a `View` and the functions that it needs."""

from __future__ import annotations

from pollwise.web.pages.controller import AgentPage, ControllerPage
from pollwise.web.pages.queues.overview import OverviewPage
from pollwise.web.pages.queues.page import QueuePage
from pollwise.web.view import View

#: Every page, in the order of their routes.
VIEWS: tuple[type[View], ...] = (OverviewPage, QueuePage, ControllerPage, AgentPage)
