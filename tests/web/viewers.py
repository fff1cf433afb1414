"""Who looks at pages in tests."""

from __future__ import annotations

from pollwise.web.access import WebAccess


class Everybody(WebAccess):
    """Lets everybody in, as an admin."""
