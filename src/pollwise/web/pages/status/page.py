"""The addresses that everybody may ask for: the status page, its feed, and its badges.

They are rendered from the same cached contents, so that many visitors cost the store no more than
one. They set no cookie and read none.
"""

from __future__ import annotations

from abc import abstractmethod
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from pollwise.errors import PollwiseError
from pollwise.web.pages.status.badge import badge
from pollwise.web.pages.status.contents import KEPT_FOR, PublicStatus, StatusContents
from pollwise.web.pages.status.feed import feed
from pollwise.web.texts import percent
from pollwise.web.view import PublicAddress

#: Words and colours of states.
SHOWN = {
    "up": ("Up", "green"),
    "down": ("Down", "red"),
    "maintenance": ("Maintenance", "amber"),
    "paused": ("Paused", "grey"),
    "unknown": ("Unknown", "grey"),
}


class _StatusAddress(PublicAddress):
    """Something made from the contents of the status page."""

    def shown(self) -> bool:
        return self.web.status is not None

    @property
    def contents(self) -> StatusContents:
        assert self.web.status is not None  # noqa: S101 - `shown` says so
        return self.web.status

    async def _public(self, request: Request) -> Response:
        try:
            status = await self.contents.get()
        except (PollwiseError, OSError):
            # Why is for the operators: their pages show it.
            return Response(
                "The status is not known right now. Try again in a moment.",
                503,
                {"Retry-After": f"{KEPT_FOR:.0f}"},
                "text/plain",
            )
        answer = self.made(request, status)
        if answer.status_code == 200:
            tag = f'"{sha256(bytes(answer.body)).hexdigest()[:32]}"'
            if request.headers.get("if-none-match") == tag:
                answer = Response(status_code=304)
            answer.headers["ETag"] = tag
        answer.headers["Cache-Control"] = f"public, max-age={KEPT_FOR:.0f}"
        return answer

    @abstractmethod
    def made(self, request: Request, status: PublicStatus) -> Response:
        """The answer, from the contents."""


class StatusPage(_StatusAddress):
    """The status page."""

    name = "status"
    path = "/status"

    def made(self, request: Request, status: PublicStatus) -> Response:
        # The same for everybody, and the same until the contents change.
        values = {"status": status, "SHOWN": SHOWN, "now": status.at, "theme": "auto"}
        return self.web.pages.plain(request, "status/page.html", {**values, "again": KEPT_FOR * 2})


class StatusFeed(_StatusAddress):
    """The feed of incidents."""

    name = "status-feed"
    path = "/status/feed.xml"

    def made(self, request: Request, status: PublicStatus) -> Response:
        path = request.scope.get("root_path", "") + self.web.path_of("status")
        # Without a host: that of the request is what its sender likes.
        return Response(feed(status, path), media_type="application/rss+xml")


class StatusBadge(_StatusAddress):
    """The badge of a target: its state, or its uptime with `?window=30d`."""

    name = "status-badge"
    path = "/status/badge/{target:path}.svg"

    def made(self, request: Request, status: PublicStatus) -> Response:
        target = status.target(request.path_params["target"])
        if target is None:
            return Response("There is no such target here.", 404, media_type="text/plain")
        value, tone = SHOWN[target.state]
        window = request.query_params.get("window")
        if window is not None:
            if window not in target.uptimes:
                known = ", ".join(target.uptimes)
                return Response(f"window must be one of {known}", 400, media_type="text/plain")
            uptime = target.uptimes[window]
            value = f"{percent(uptime, 2)} {window}" if uptime is not None else "–"
            tone = "grey" if uptime is None else "green" if uptime >= 0.99 else "amber"
        drawn = badge(target.name, value.lower() if window is None else value, tone)
        # Other sites may show it.
        headers = {"Cross-Origin-Resource-Policy": "cross-origin"}
        return Response(drawn, headers=headers, media_type="image/svg+xml")
