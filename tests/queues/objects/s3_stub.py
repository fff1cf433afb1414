"""The part of S3 that obstore uses, in this process: it counts requests, and gives answers that no
available server gives."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any, Self
from xml.sax.saxutils import escape

from aiohttp import web

_XML = '<?xml version="1.0" encoding="UTF-8"?>'


class Stub:
    """heedless: ignores If-None-Match. answer: a status and a code for every request.

    conflicts: the number of create-only writes to answer with 409 ConditionalRequestConflict.
    """

    def __init__(self, *, heedless: bool = False, answer: tuple[int, str] | None = None) -> None:
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.conflicts = 0
        self._heedless = heedless
        self._answer = answer
        self._counts: Counter[str] = Counter()

    def take(self) -> dict[str, int]:
        counts, self._counts = dict(self._counts), Counter()
        return counts

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def store(self) -> Any:
        from obstore.store import S3Store

        config: Any = {
            "endpoint": f"http://127.0.0.1:{self._port}",
            "access_key_id": "test",
            "secret_access_key": "testtest",
            "region": "us-east-1",
        }
        return S3Store(
            "jobs",
            config=config,
            client_options={"allow_http": True, "timeout": "5s"},
            retry_config={"max_retries": 0},
        )

    async def _handle(self, request: web.Request) -> web.Response:
        key = request.path.removeprefix("/jobs").lstrip("/")
        verb = "LIST" if request.method == "GET" and not key else request.method
        self._counts[verb] += 1
        if self._answer is not None:
            return _error(*self._answer)
        match verb:
            case "LIST":
                return self._list(request.query)
            case "PUT":
                return await self._put(request, key)
            case "POST":
                names = re.findall(r"<Key>(.*?)</Key>", await request.text())
                for name in names:
                    self.objects.pop(name, None)
                rows = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
                return web.Response(text=f"{_XML}<DeleteResult>{rows}</DeleteResult>")
            case "DELETE":
                self.objects.pop(key, None)
                return web.Response(status=204)
        found = self.objects.get(key)
        if found is None:
            return _error(404, "NoSuchKey")
        stamp = found[1].strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"Last-Modified": stamp, "ETag": '"x"'}
        return web.Response(body=found[0], headers=headers)

    async def _put(self, request: web.Request, key: str) -> web.Response:
        if self.conflicts:
            self.conflicts -= 1
            return _error(409, "ConditionalRequestConflict")
        if request.headers.get("If-None-Match") and not self._heedless and key in self.objects:
            return _error(412, "PreconditionFailed")
        self.objects[key] = (await request.read(), datetime.now(UTC).replace(microsecond=0))
        return web.Response(headers={"ETag": '"x"'})

    def _list(self, query: Any) -> web.Response:
        names = sorted(name for name in self.objects if name.startswith(query.get("prefix", "")))
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(self.objects[name][0])}</Size>"
            f"<LastModified>{self.objects[name][1].isoformat()}</LastModified>"
            '<ETag>"x"</ETag></Contents>'
            for name in names
        )
        text = f"{_XML}<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        return web.Response(text=text, content_type="application/xml")


def _error(status: int, code: str) -> web.Response:
    text = f"{_XML}<Error><Code>{code}</Code><Message>{code} of bucket jobs</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")
