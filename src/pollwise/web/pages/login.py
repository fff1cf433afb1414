"""The login page, and the ways out of and into a session."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from pollwise.runtime.http import address_of
from pollwise.web.security.forms import is_local, read_form
from pollwise.web.security.limits import TooManySessions
from pollwise.web.security.signing import Cookie, same

if TYPE_CHECKING:
    from pollwise.web.access import SessionAccess, Viewer
    from pollwise.web.app import Web

#: The longest text that is tried as a token or a password.
GIVEN_MAX = 1000
#: How long a login form can be used, in seconds.
FORM_LIFE = 3600.0
#: One message for all failures, so that it does not reveal what exists.
WRONG = "This is not a valid token or password."


def login_routes(web: Web, access: SessionAccess) -> Sequence[BaseRoute]:
    """`/login`, `/logout`, and `/once/…`, which logs in once."""
    page = _LoginPage(web, access)
    return [
        Route("/login", page.answer, methods=["GET", "POST"], name="login"),
        Route("/logout", page.log_out, methods=["POST"], name="logout"),
        Route("/once/{link}", page.once, methods=["GET"], name="once"),
    ]


class _LoginPage:
    """The form carries a token that belongs to a cookie of this browser.

    Without it, another site could log a visitor in under the account of an attacker.
    """

    def __init__(self, web: Web, access: SessionAccess) -> None:
        self._web = web
        self._access = access

    async def answer(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._posted(request)
        asked = request.query_params.get("next", "")
        if await self._access.viewer(request) is not None:
            return RedirectResponse(self._goal(request, asked), status_code=303)
        return self._form(request, asked)

    async def _posted(self, request: Request) -> Response:
        try:
            return await self._tried(request)
        except TooManySessions as error:
            text = f"Too many logins with this token. Try again in {math.ceil(error.wait)} s."
            return self._too_many(request, text, error.wait)

    def _too_many(self, request: Request, text: str, wait: float) -> Response:
        refused = self._form(request, request.query_params.get("next", ""), text, 429)
        refused.headers["Retry-After"] = str(math.ceil(wait))
        return refused

    async def _tried(self, request: Request) -> Response:
        from pollwise.web.access import check_origin

        check_origin(request)
        await self._access.start()
        form = await read_form(request)
        asked, given = form.get("next", ""), form.get("secret", "").strip()
        if not self._is_ours(request, form):
            return self._form(request, asked, "The form is out of date; try again.", 400)
        address = address_of(request.scope)
        wait = self._access.limits.begin(address)
        goal = RedirectResponse(self._goal(request, asked), status_code=303)
        if wait:
            # Nobody can guess a token, so failures of others do not keep its owner out.
            viewer = await self._access.log_in(request, given[:GIVEN_MAX], goal, only_tokens=True)
            if viewer is not None:
                return await self._begun(request, viewer, goal)
            text = f"Too many failed attempts. Try again in {math.ceil(wait)} s."
            return self._too_many(request, text, wait)
        viewer = await self._access.log_in(request, given[:GIVEN_MAX], goal)
        if viewer is None:
            await self._access.noted_login(request, "nobody", "login.failed")
            return self._form(request, asked, WRONG, 401)
        self._access.limits.succeeded(address)
        return await self._begun(request, viewer, goal)

    async def _begun(self, request: Request, viewer: Viewer, goal: Response) -> Response:
        await self._access.noted_login(request, viewer.who, "login", viewer.scope)
        self._cookie.delete(request, goal)
        return goal

    async def once(self, request: Request) -> Response:
        """Log in by an address that works once. Those who are logged in only go on."""
        if request.method == "HEAD":  # a preview of the address must not use it up
            raise HTTPException(405, headers={"Allow": "GET"})
        root = request.scope.get("root_path", "")
        goal = RedirectResponse(f"{root}/", status_code=303)
        if await self._access.viewer(request) is not None:
            return goal
        viewer = await self._access.log_in_once(request, request.path_params["link"], goal)
        if viewer is None:
            text = "This address was used already, or is too old. Ask for a new one."
            return self._form(request, "", text, 401)
        await self._access.noted_login(request, viewer.who, "login", viewer.scope)
        return goal

    async def log_out(self, request: Request) -> Response:
        viewer = await self._access.viewer(request)
        answer = RedirectResponse(f"{request.scope.get('root_path', '')}/login", status_code=303)
        if viewer is not None:
            await self._access.checked_form(request, viewer)
            self._access.log_out(request, answer)
            await self._access.noted_login(request, viewer.who, "logout")
        return answer

    @property
    def _cookie(self) -> Cookie:
        return Cookie(f"pollwise_login_{self._access.signer.mark}", strict=True)

    def _form(self, request: Request, asked: str, error: str = "", status: int = 200) -> Response:
        signer, cookie = self._access.signer, self._cookie
        known = signer.opened("login", cookie.read(request))
        browser = str(known[0]) if known else secrets.token_urlsafe(18)
        context = {
            "error": error,
            "next": asked if self._is_goal(request, asked) else "",
            "csrf": signer.code("login form", browser),
        }
        answer = self._web.pages.plain(request, "login.html", context, status)
        cookie.set(request, answer, signer.signed("login", [browser], FORM_LIFE), FORM_LIFE)
        return answer

    def _is_ours(self, request: Request, form: Mapping[str, str]) -> bool:
        signer = self._access.signer
        known = signer.opened("login", self._cookie.read(request))
        expected = signer.code("login form", str(known[0])) if known else ""
        return bool(known) and same(form.get("csrf", ""), expected)

    def _goal(self, request: Request, asked: str) -> str:
        root = request.scope.get("root_path", "")
        return asked if self._is_goal(request, asked) else f"{root}/"

    def _is_goal(self, request: Request, asked: str) -> bool:
        root = request.scope.get("root_path", "")
        path = asked.partition("?")[0].removeprefix(root)
        return is_local(asked, root) and not path.startswith(("/login", "/logout", "/once/"))
