"""Who looks at a page, and what they may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

if TYPE_CHECKING:
    from pollwise.web.view import Visit

WebScope = Literal["read", "operate", "admin"]
#: What each scope includes.
INCLUDES: Mapping[str, frozenset[str]] = {
    "read": frozenset({"read"}),
    "operate": frozenset({"read", "operate"}),
    "admin": frozenset({"read", "operate", "admin"}),
}


class Forbidden(Exception):
    """The viewer may not do this; the page answers 403."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who is logged in.

    who: for the audit log. csrf: the token that each of their forms carries.
    """

    who: str
    scope: WebScope
    csrf: str = ""

    def may(self, scope: str) -> bool:
        return scope in INCLUDES[self.scope]

    def must_have(self, scope: str) -> None:
        if not self.may(scope):
            raise Forbidden(f"this needs the scope {scope}, and you have {self.scope}")


class WebAccess:
    """Checks who sent a request. This version lets everybody in from this machine."""

    read_only = False

    async def viewer(self, request: Request) -> Viewer | None:
        return Viewer("local", "admin", "local")

    def ask_for_login(self, request: Request) -> Response:
        return RedirectResponse(str(request.url_for("login")), status_code=303)

    async def checked_form(self, request: Request, viewer: Viewer) -> Mapping[str, str]:
        form = await request.form(max_files=0, max_fields=100)
        return {name: value for name, value in form.items() if isinstance(value, str)}

    def check_writable(self) -> None:
        if self.read_only:
            raise Forbidden("this web interface is read-only")

    async def note(self, visit: Visit, action: str, what: str) -> None:
        """Write into the audit log what a viewer did."""

    def way_back(self, request: Request, form: Mapping[str, str]) -> str:
        """The page to show after an action: `back` of the form if it is a path here, else this."""
        back = form.get("back", "")
        if back.startswith("/") and not back.startswith(("//", "/\\")) and back.isprintable():
            return back[:2000]
        return request.url.path + (f"?{request.url.query}" if request.url.query else "")

    def flash(self, response: Response, message: str, *, good: bool) -> None:
        """Show a message once, on the next page."""

    def flashed(self, request: Request) -> tuple[str, bool] | None:
        return None
