"""The web interface: pages about queues, workers, outboxes, fleets and controllers.

`pollwise.web.app(...)` makes the ASGI application; `pollwise web` serves it. Pages are rendered on
the server and work without JavaScript; `static/app.js` makes them live. A page is a `View` in
`pages/` with a template in `templates/`.
"""

from __future__ import annotations

from pollwise.errors import MissingExtra

try:
    from pollwise.web.app import app
except ImportError as error:  # pragma: no cover - tried in an environment without the extra
    if (error.name or "").partition(".")[0] in ("starlette", "jinja2"):
        raise MissingExtra("the web interface", "web") from None
    raise

__all__ = ["app"]
