"""A page: where it is, what it shows, and what can be done on it.

A `View` collects the values for a template. The same address answers three kinds of requests: GET
renders the whole page, GET for an event stream renders it again whenever it changed, and POST does
one of its actions and then sends the browser back to the page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pollwise.errors import PollwiseError
from pollwise.web.access import Viewer
from pollwise.web.live import event_stream, login_event, wants_events
from pollwise.web.security.forms import values_of

if TYPE_CHECKING:
    from pollwise.web.app import Web


class NotShown(Exception):
    """There is no such thing here; the page answers 404. message: what was not found."""


class Refused(Exception):
    """A form asks for something that cannot be done. The message is shown on the page.

    back: the address of the page to show then; None for the one with the form.
    """

    def __init__(self, message: str, back: str | None = None) -> None:
        super().__init__(message)
        self.back = back


@dataclass(frozen=True, slots=True)
class Acted:
    """What an action did, as a sentence, and the address of the page to show then."""

    said: str
    back: str


@dataclass(frozen=True, slots=True)
class ShownOnce:
    """What an action did, and values for the template that are never shown again.

    They are in the answer itself: a secret must not wait in a cookie.
    """

    said: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of somebody who may see the page."""

    web: Web
    request: Request
    viewer: Viewer

    @property
    def path(self) -> Mapping[str, Any]:
        """The named parts of the address."""
        return self.request.path_params

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters after the question mark."""
        return self.request.query_params

    async def picked(self, name: str, most: int) -> list[str]:
        """The values of the fields of one name in a form, such as rows of a table, once each."""
        values = dict.fromkeys(values_of(self.request, name))
        if len(values) > most:
            raise Refused(f"{len(values)} rows are selected; at most {most} at a time.")
        return list(values)


Done = str | Acted | ShownOnce


class Address(ABC):
    """An address of the web interface that only viewers can ask for.

    name: of its route, for links: `url("queue", slug="mail")`. path: where it is.
    scope: what a viewer needs to see it. menu: its text in the navigation; "" for none.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    scope: ClassVar[str] = "read"
    menu: ClassVar[str] = ""

    def __init__(self, web: Web) -> None:
        self.web = web

    @abstractmethod
    async def _shown(self, visit: Visit) -> Response:
        """The answer to somebody who has the scope."""

    def shown(self) -> bool:
        """False if this web interface has nothing for it, such as no fleet."""
        return True

    def in_menu(self) -> bool:
        """False to leave a page out of the navigation for now."""
        return bool(self.menu)

    def methods(self) -> list[str]:
        return ["GET"]

    def routes(self) -> list[Route]:
        return [Route(self.path, self._answer, methods=self.methods(), name=self.name)]

    async def _answer(self, request: Request) -> Response:
        web = self.web
        viewer = await web.access.viewer(request)
        if viewer is None:
            events = wants_events(request)
            return login_event() if events else web.access.ask_for_login(request)
        viewer.must_have(self.scope)
        await web.sources.discover()
        return await self._shown(Visit(web, request, viewer))


class PublicAddress(Address):
    """An address that everybody may ask for, without a login."""

    async def _answer(self, request: Request) -> Response:
        return await self._public(request)

    @abstractmethod
    async def _public(self, request: Request) -> Response:
        """The answer to anybody."""

    async def _shown(self, visit: Visit) -> Response:
        return await self._public(visit.request)


class View(Address):
    """A page of the web interface.

    template: in `templates/`. actions: by the name of an action, the scope that it needs.
    """

    template: ClassVar[str]
    actions: ClassVar[Mapping[str, str]] = {}

    # What a page implements

    @abstractmethod
    async def context(self, visit: Visit) -> Mapping[str, Any]:
        """The values for the template. Raises `NotShown` if there is no such thing."""

    async def marker(self, visit: Visit) -> Hashable:
        """A value that changes when the page does, by at most one cheap query.

        A live page is rendered again only if it changed (and now and then, for its times).
        """
        return None

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> Done:
        """Do one of `actions`; return what was done, as a sentence for the page.

        Raises `Refused` if the form is wrong. The base class has checked the scope and the form's
        token, and writes the audit log.
        """
        raise Refused(f"This page has no action {action!r}.")

    # What the base class does

    def methods(self) -> list[str]:
        return ["GET", "POST"] if self.actions else ["GET"]

    async def _shown(self, visit: Visit) -> Response:
        if visit.request.method == "POST":
            return await self._posted(visit)
        if wants_events(visit.request):
            return event_stream(self, visit)
        return await self.web.pages.page(self, visit)

    async def _posted(self, visit: Visit) -> Response:
        web, request = self.web, visit.request
        access = web.access
        form = await access.checked_form(request, visit.viewer)
        action = form.get("action", "")
        scope = self.actions.get(action)
        if scope is None:
            text = f"This page has no action {action[:40]!r}."
            return await web.pages.error(request, 400, text, visit.viewer)
        visit.viewer.must_have(scope)
        access.check_writable()
        back = access.way_back(request, form)
        try:
            done = await self.act(visit, action, form)
        except (Refused, PollwiseError) as refused:
            said, good = str(refused), False
            back = getattr(refused, "back", None) or back
            await access.note(visit, f"{action} refused", said)
        else:
            if isinstance(done, ShownOnce):
                await access.note(visit, action, done.said)
                return await web.pages.page(self, visit, once=done)
            said, back = (done.said, done.back) if isinstance(done, Acted) else (done, back)
            good = True
            await access.note(visit, action, said)
        answer = RedirectResponse(back, status_code=303)
        access.flash(request, answer, said, good=good)
        return answer
