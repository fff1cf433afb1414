"""Following a log ends with its token, and no query is in the access log."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from pollwise.controller.http.server import _as_our_record
from tests.controller.farm import Farm, virtually_on_farm


def test_a_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        await agent.job()
        made = await farm.call("POST", "/api/tokens", 201, json={"scope": "read", "name": "eve"})
        reader = {"Authorization": f"Bearer {made['token']}"}
        path = f"/api/jobs/{job['id']}/logs?follow=true"
        following = asyncio.ensure_future(farm.http.get(path, headers=reader))
        await asyncio.sleep(30)
        assert not following.done()
        await farm.call("DELETE", f"/api/tokens/{made['id']}")
        answer = await asyncio.wait_for(following, 60)
        assert "event: end" not in answer.text

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize("query", ["?follow=true&signature=1.2.secret", ""])
def test_no_query_is_in_the_access_log(query: str) -> None:
    args = ("1.2.3.4:5", "GET", f"/api/jobs/1/logs{query}", "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "%s %s %s %s %s", args, None)
    assert _as_our_record(record)
    assert "secret" not in record.getMessage() + str(vars(record)["fields"])
    assert "/api/jobs/1/logs" in record.getMessage()
