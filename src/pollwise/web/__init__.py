"""The web interface: pages about queues, workers, outboxes, fleets and controllers.

`pollwise.web.app(...)` makes the ASGI application; `pollwise web` serves it. Pages are rendered on
the server and work without JavaScript; `static/app.js` makes them live. A page is a `View` in
`pages/` with a template in `templates/`.
"""

from __future__ import annotations

from pollwise.errors import MissingExtra

try:
    from pollwise.web.access import Viewer, everybody
    from pollwise.web.app import WebApp, app
    from pollwise.web.pages.status.options import StatusOptions
except ImportError as error:  # pragma: no cover - tried in an environment without the extra
    needed = ("starlette", "jinja2", "markupsafe", "python_multipart")
    if (error.name or "").partition(".")[0] in needed:
        raise MissingExtra("the web interface", "web") from None
    raise

__all__ = ["StatusOptions", "Viewer", "WebApp", "app", "everybody"]
