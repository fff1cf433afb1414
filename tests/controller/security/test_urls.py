"""Signed URLs: a browser follows a log without a header, for one job and a short time."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from pollwise.controller.http.server import _as_our_record
from tests.controller.farm import Farm, virtually_on_farm


async def signed(farm: Farm, job: Any, headers: Any = None, **given: Any) -> str:
    path = f"/api/jobs/{job['id']}/logs/url"
    made = await farm.call("POST", path, 201, headers=headers, json=given)
    url: str = made["url"]
    return url


async def written(farm: Farm) -> Any:
    """A job that is done, with a log."""
    agent = await farm.register()
    job = await farm.put()
    await agent.job()
    path = f"/api/jobs/{job['id']}/logs?offset=0"
    await farm.http.post(path, content=b"built\n", headers=agent.headers)
    await agent.finish(job)
    return job


def test_a_signed_url_follows_the_log_of_its_job_alone(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        job, other = await written(farm), await farm.put()
        url = await signed(farm, job)
        followed = await farm.http.get(url)
        assert followed.headers["content-type"].startswith("text/event-stream")
        assert "data: built" in followed.text
        assert "event: end" in followed.text
        query = url.partition("?")[2]
        for method, path in (
            ("GET", f"/api/jobs/{other['id']}/logs?{query}"),
            ("GET", f"/api/jobs/{job['id']}?{query}"),
            ("GET", f"/api/jobs/{job['id']}/artefacts/logs?{query}"),
            ("GET", f"/api/jobs?{query}"),
            ("POST", f"/api/jobs/{job['id']}/logs?offset=0&{query}"),
            ("POST", f"/api/jobs/{job['id']}/logs/url?{query}"),
            ("GET", url.replace("signature=", "signature=9")),
            ("GET", url[:-1] + ("0" if url[-1] != "0" else "1")),
            ("GET", url.rpartition("=")[0] + "=x"),
        ):
            refused = await farm.http.request(method, path)
            assert refused.status_code == 401, f"{method} {path}"

    virtually_on_farm(main, tmp_path)


def test_a_signed_url_expires(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        job = await written(farm)
        url = await signed(farm, job, expires_in_s=60)
        await asyncio.sleep(55)
        assert (await farm.http.get(url)).status_code == 200
        await asyncio.sleep(10)
        late = await farm.http.get(url)
        assert (late.status_code, late.json()["error"]["message"]) == (
            401, "the signed URL has expired",
        )  # fmt: skip
        for seconds in (0, -1, 3601, "x"):
            path = f"/api/jobs/{job['id']}/logs/url"
            await farm.call("POST", path, 422, json={"expires_in_s": seconds})

    virtually_on_farm(main, tmp_path)


def test_a_signed_url_has_the_rights_of_its_token_at_each_use(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        job = await written(farm)
        for scope in ("worker",):
            headers = await farm.token(scope)
            await farm.call("POST", f"/api/jobs/{job['id']}/logs/url", 403, headers=headers)
        stranger = await farm.token("put")
        await farm.call("POST", f"/api/jobs/{job['id']}/logs/url", 404, headers=stranger)
        made = await farm.call("POST", "/api/tokens", 201, json={"scope": "read", "name": "eve"})
        reader = {"Authorization": f"Bearer {made['token']}"}
        url = await signed(farm, job, reader)
        assert (await farm.http.get(url)).status_code == 200
        await farm.call("DELETE", f"/api/tokens/{made['id']}")
        revoked = await farm.http.get(url)
        assert (revoked.status_code, revoked.json()["error"]["message"]) == (
            401, "the token was revoked",
        )  # fmt: skip

    virtually_on_farm(main, tmp_path)


def test_a_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        await agent.job()
        made = await farm.call("POST", "/api/tokens", 201, json={"scope": "read", "name": "eve"})
        url = await signed(farm, job, {"Authorization": f"Bearer {made['token']}"})
        following = asyncio.ensure_future(farm.http.get(url))
        await asyncio.sleep(30)
        assert not following.done()
        await farm.call("DELETE", f"/api/tokens/{made['id']}")
        answer = await asyncio.wait_for(following, 60)
        assert "event: end" not in answer.text

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize("query", ["?follow=true&signature=1.2.secret", ""])
def test_no_signature_is_in_the_access_log(query: str) -> None:
    args = ("1.2.3.4:5", "GET", f"/api/jobs/1/logs{query}", "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "%s %s %s %s %s", args, None)
    assert _as_our_record(record)
    assert "secret" not in record.getMessage() + str(vars(record)["fields"])
    assert "/api/jobs/1/logs" in record.getMessage()
