"""Files to save: raw payloads, logs, artefacts. A browser stores them and never shows them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from pollwise.errors import PollwiseError
from pollwise.web.view import Address, NotShown, Visit

PLAIN = "text/plain; charset=utf-8"


class Download(Address):
    """An address that answers with a file instead of a page."""

    @abstractmethod
    async def file(self, visit: Visit) -> Response:
        """The file, made by `saved`. Raises `NotShown` if there is no such thing."""

    async def _shown(self, visit: Visit) -> Response:
        try:
            return await self.file(visit)
        except NotShown as missing:
            return await self.web.pages.error(visit.request, 404, str(missing), visit.viewer)
        except (PollwiseError, OSError) as error:
            return await self.web.pages.error(visit.request, 503, str(error), visit.viewer)


def saved(
    name: str, body: str | bytes | AsyncIterator[bytes], size: int | None = None, kind: str = PLAIN
) -> Response:
    """An answer that a browser saves under a name.

    size: of the body in bytes, if it comes in pieces. kind: its media type.
    """
    last = name.rpartition("/")[2] or "file"
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(last, '', errors='replace')}",
        "X-Content-Type-Options": "nosniff",
    }
    if isinstance(body, (str, bytes)):
        return Response(body, headers=headers, media_type=kind)
    if size is not None:
        headers["Content-Length"] = str(size)
    return StreamingResponse(body, headers=headers, media_type=kind)
