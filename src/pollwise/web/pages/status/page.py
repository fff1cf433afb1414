"""The status page, which everybody may ask for.

It is rendered from cached contents, so that many visitors cost the store no more than one. It sets
no cookie and reads none.
"""

from __future__ import annotations

from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from pollwise.errors import PollwiseError
from pollwise.web.pages.status.contents import KEPT_FOR
from pollwise.web.view import PublicAddress

#: Words and colours of states.
SHOWN = {
    "up": ("Up", "green"),
    "down": ("Down", "red"),
    "maintenance": ("Maintenance", "amber"),
    "paused": ("Paused", "grey"),
    "unknown": ("Unknown", "grey"),
}


class StatusPage(PublicAddress):
    """The status page."""

    name = "status"
    path = "/status"

    def shown(self) -> bool:
        return self.web.status is not None

    async def _public(self, request: Request) -> Response:
        assert self.web.status is not None  # noqa: S101 - `shown` says so
        try:
            status = await self.web.status.get()
        except (PollwiseError, OSError):
            # Why is for the operators: their pages show it.
            return Response(
                "The status is not known right now. Try again in a moment.",
                503,
                {"Retry-After": f"{KEPT_FOR:.0f}"},
                "text/plain",
            )
        # The same for everybody, and the same until the contents change.
        values = {"status": status, "SHOWN": SHOWN, "now": status.at, "theme": "auto"}
        answer = self.web.pages.plain(
            request, "status/page.html", {**values, "again": KEPT_FOR * 2}
        )
        tag = f'"{sha256(bytes(answer.body)).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            answer = Response(status_code=304)
        answer.headers["ETag"] = tag
        answer.headers["Cache-Control"] = f"public, max-age={KEPT_FOR:.0f}"
        return answer
