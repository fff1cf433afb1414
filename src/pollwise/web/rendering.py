"""Renders pages: the templates, their filters, and the headers of every answer."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from pollwise.version import __version__
from pollwise.web import charts, texts
from pollwise.web.access import Viewer
from pollwise.web.redaction import redacted_text
from pollwise.web.view import NotShown, ShownOnce

if TYPE_CHECKING:
    from pollwise.web.app import Web
    from pollwise.web.view import View, Visit

HERE = Path(__file__).parent
#: The cookie with the chosen theme.
THEME = "pollwise_theme"


class _Compiled(BytecodeCache):
    """The code of templates, compiled once for all the interfaces of a process."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _Compiled()


class Pages:
    """Renders views into answers."""

    def __init__(self, web: Web) -> None:
        self._web = web
        self.environment: Environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            enable_async=False,
            bytecode_cache=_COMPILED,
        )
        self.environment.filters.update(texts.FILTERS)
        self.environment.filters["no_secrets"] = self._without_secrets
        self.environment.globals.update(charts=charts, version=__version__, **texts.GLOBALS)
        self._assets = {
            path.name: sha256(path.read_bytes()).hexdigest()[:12]
            for path in (HERE / "static").iterdir()
            if path.is_file()
        }

    def _without_secrets(self, text: str | None) -> str:
        """Hide secrets in text of a handler, such as an error, before a cut could split one."""
        return redacted_text(text or "", self._web.rules)

    async def page(self, view: View, visit: Visit, once: ShownOnce | None = None) -> Response:
        """The whole page; `once`: what an action just did."""
        access = self._web.access
        flash = access.flashed(visit.request) if once is None else (once.said, True)
        try:
            context = await view.context(visit)
        except NotShown as missing:
            return await self.error(visit.request, 404, str(missing), visit.viewer)
        if once is not None:
            context = {**context, **once.values}
        html = self._render(view.template, visit.request, visit.viewer, context, flash=flash)
        answer = HTMLResponse(html)
        if flash is not None:
            access.forget_flash(visit.request, answer)
        return answer

    async def main(self, view: View, visit: Visit) -> str:
        """Only the contents of `<main>`, for a live page."""
        try:
            context = await view.context(visit)
        except NotShown as missing:
            context = {"status": 404, "message": str(missing)}
            return self._render("error.html", visit.request, visit.viewer, context, part="main")
        return self._render(view.template, visit.request, visit.viewer, context, part="main")

    async def error(
        self, request: Request, status: int, message: str, viewer: Viewer | None = None
    ) -> Response:
        context = {"status": status, "message": message}
        return HTMLResponse(self._render("error.html", request, viewer, context), status)

    def plain(
        self, request: Request, template: str, context: Mapping[str, Any], status: int = 200
    ) -> Response:
        """A page for somebody who is not logged in."""
        return HTMLResponse(self._render(template, request, None, context), status)

    def _render(
        self,
        name: str,
        request: Request,
        viewer: Viewer | None,
        context: Mapping[str, Any],
        *,
        part: str | None = None,
        flash: tuple[str, bool] | None = None,
    ) -> str:
        template = self.environment.get_template(name)
        root = request.scope.get("root_path", "")
        values = {
            "sources": self._web.sources,
            "viewer": viewer,
            "read_only": self._web.access.read_only,
            "now": self._web.sources.clock.epoch(),
            "here": request.url.path,
            "root": root,
            "url": lambda route, /, **parts: root + self._web.path_of(route, **parts),
            "can_log_out": self._web.access.can_log_out,
            "menu": [
                (view.name, view.menu)
                for view in self._web.views
                if view.in_menu() and viewer is not None and viewer.may(view.scope)
            ],
            "routes": {view.name for view in self._web.views},
            "asset": lambda name: f"{root}/static/{name}?{self._assets[name]}",
            "theme": request.cookies.get(THEME, "auto"),
            "flash": flash,
            **context,
        }
        if part is None:
            return template.render(values)
        block = template.blocks[part]
        return "".join(block(template.new_context(values)))
