"""A fleet that lets in whom a controller lets in.

    authorise = fleet_tokens(controller.auth)
    app.mount("/api/fleet", pollwise.fleet.api.application(control, authorise))

Who may submit jobs may see how the fleet fares; who gives it orders or changes its settings has to
be an admin. A worker's token is for jobs, and opens nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollwise.controller.http.answers import Refused
from pollwise.controller.security.auth import Auth
from pollwise.fleet.api import Authorise, Refusal

MAKE = "Use such a token; `pollwise serve token create` makes one, in the controller's store."

if TYPE_CHECKING:
    from starlette.requests import Request

    from pollwise.fleet.api import Scope


def fleet_tokens(auth: Auth) -> Authorise:
    """Lets in who has a token of this controller."""

    async def authorise(request: Request, scope: Scope) -> str:
        try:
            caller = await auth.caller(request.headers.get("authorization"))
            if scope == "operate":
                caller.must_be_admin()
            else:
                caller.must_submit()
        except Refused as refused:
            # The controller that could make one is elsewhere.
            what_to_do = MAKE if refused.status == 403 else refused.what_to_do
            raise Refusal(
                refused.status, refused.message, what_to_do, refused.headers, code=refused.code
            ) from None
        return caller.who

    return authorise
