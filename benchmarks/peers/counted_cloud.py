"""MiniStack behind a counter: every request is counted, by what it asks for.

    counted_cloud.py PORT [SPEED BEGAN]

SPEED: how many times as fast as real time its time passes, counted from BEGAN. GET /counts returns
the counts so far; counting sends no request to the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

port = int(sys.argv[1])
os.environ |= {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "LOG_LEVEL": "WARNING"}
sys.path[0] = str(Path(__file__).resolve().parents[2])

if len(sys.argv) > 2:
    from tests.support.fast import FastTime, hurry

    hurry(FastTime(float(sys.argv[3]), speed=float(sys.argv[2])))

from hypercorn.asyncio import serve  # noqa: E402
from hypercorn.config import Config  # noqa: E402
from ministack.app import app  # noqa: E402

os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it prints long errors when it is ended
counts: dict[str, Counter[str]] = {}
QUEUE = re.compile(rb"/\d{12}/([A-Za-z0-9_.-]+)|(?:%2F)\d{12}(?:%2F)([A-Za-z0-9_.-]+)")


def what(scope: Any, body: bytes) -> tuple[str, str]:
    """The queue or bucket of a request, and what it asks for."""
    headers = dict(scope["headers"])
    query = parse_qs(scope["query_string"].decode(), keep_blank_values=True)
    action = headers.get(b"x-amz-target", b"").rpartition(b".")[2].decode()
    if not action and b"Action=" in body:
        action = parse_qs(body.decode("utf-8", "replace")).get("Action", [""])[0]
    if action or "Action" in query:
        found = QUEUE.search(body) or QUEUE.search(scope["path"].encode())
        queue = next((part for part in found.groups() if part), b"") if found else b""
        return queue.decode(), action or query["Action"][0]
    bucket = scope["path"].strip("/").partition("/")[0]
    if scope["method"] == "GET" and ("list-type" in query or "prefix" in query):
        return bucket, "LIST"
    if scope["method"] == "POST" and "delete" in query:
        return bucket, "DELETE many"
    return bucket, str(scope["method"])


async def counted(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http" or scope["path"].startswith("/_ministack"):
        await app(scope, receive, send)
        return
    if scope["path"] == "/counts":
        body = json.dumps(counts).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})
        return
    read: list[Any] = []

    async def first_then_more() -> Any:
        return read.pop(0) if read else await receive()

    parts = []
    while True:
        message = await receive()
        parts.append(message)
        if message["type"] != "http.request" or not message.get("more_body"):
            break
    whose, asks = what(scope, b"".join(part.get("body", b"") for part in parts))
    counts.setdefault(whose, Counter())[asks] += 1
    read += parts
    await app(scope, first_then_more, send)


config = Config()
config.bind = [f"127.0.0.1:{port}"]
config.keep_alive_timeout = 3600
config.loglevel = "WARNING"
asyncio.run(serve(counted, config))
