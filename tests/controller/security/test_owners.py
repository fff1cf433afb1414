"""A token with the scope put sees, cancels and retries the jobs that it put, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pollwise.controller.http.routes.jobs import SCAN, SCANNED_MAX
from tests.controller.farm import Farm, virtually_on_farm


async def tokens(farm: Farm) -> tuple[Any, Any, Any]:
    return (
        await farm.token("put"),
        await farm.token("put"),
        await farm.token("put", all_jobs=True),
    )


async def put(farm: Farm, headers: Any, status: int = 201, **given: Any) -> Any:
    body = {"kind": "build", **given}
    return await farm.call("POST", "/api/jobs", status, headers=headers, json=body)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_jobs_of_another_token_are_not_there(tmp_path: Path, store: str) -> None:
    async def main(farm: Farm) -> None:
        mine, theirs, everybody = await tokens(farm)
        agent = await farm.register(slots=9)
        files = {"job": (None, '{"kind": "build", "payload": "hush"}'), "f": ("in.txt", b"hush")}
        job = await farm.call("POST", "/api/jobs", 201, headers=theirs, files=files)
        path = f"/api/jobs/{job['id']}"
        await agent.job()
        await farm.http.put(f"{path}/artefacts/out.txt", content=b"hush", headers=agent.headers)
        await farm.http.post(f"{path}/logs?offset=0", content=b"hush", headers=agent.headers)
        for sub in (
            "", "/result", "/logs", "/logs?follow=true", "/artefacts", "/artefacts/out.txt",
            "/inputs", "/inputs/in.txt",
        ):  # fmt: skip
            refused = await farm.http.get(path + sub, headers=mine)
            assert refused.status_code == 404, sub
            assert "hush" not in refused.text
            if "follow" not in sub and sub != "/result":
                for headers in (theirs, everybody, await farm.token("read")):
                    assert (await farm.http.get(path + sub, headers=headers)).status_code == 200
        for sub in ("/cancel", "/retry"):
            await farm.call("POST", path + sub, 404, headers=mine)
        assert (await farm.job(job["id"]))["cancel"] is False
        assert (await farm.call("POST", f"{path}/cancel", headers=everybody))["cancel"] is True
        await agent.finish(job, "cancelled")
        await farm.call("POST", f"{path}/retry", headers=theirs)
        await farm.call("POST", f"{path}/cancel", headers=await farm.token("operate"))

    virtually_on_farm(main, tmp_path, store)


def test_a_repeat_of_anothers_unique_tells_nothing(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        mine, theirs, everybody = await tokens(farm)
        first = await put(farm, theirs, unique="u")
        assert (await put(farm, theirs, 200, unique="u"))["id"] == first["id"]
        refused = await put(farm, mine, 409, unique="u")
        assert refused["error"]["code"] == "unique_conflict"
        assert first["id"] not in str(refused)
        assert (await put(farm, everybody, 200, unique="u"))["id"] == first["id"]

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_list_has_the_own_jobs_page_by_page(tmp_path: Path, store: str) -> None:
    async def main(farm: Farm) -> None:
        mine, theirs, everybody = await tokens(farm)
        own = []
        for amount in (SCANNED_MAX + SCAN, 3, SCAN):
            for at in range(0, amount, 1000):
                jobs = [{"kind": "build"}] * min(1000, amount - at)
                await farm.call("POST", "/api/jobs", 201, headers=theirs, json=jobs)
            own += [(await put(farm, mine, payload=n))["id"] for n in range(3)]

        async def listed(headers: Any, limit: int) -> tuple[list[str], int]:
            found, pages, after = [], 0, ""
            while True:
                asked = {"limit": limit, **({"after": after} if after else {})}
                page = await farm.call("GET", "/api/jobs", headers=headers, params=asked)
                found += [each["id"] for each in page["jobs"]]
                pages += 1
                assert len(page["jobs"]) <= limit
                if page["next"] is None:
                    return found, pages
                after = page["next"]

        for limit, pages in ((2, 6), (1000, 2)):
            found, asked = await listed(mine, limit)
            assert sorted(found) == sorted(own)
            assert asked <= pages, "each page reads up to SCANNED_MAX jobs"
        assert len((await listed(everybody, 1000))[0]) == SCANNED_MAX + 2 * SCAN + 12
        ready = await farm.call("GET", "/api/jobs?state=ready&kind=test", headers=mine)
        assert ready == {"jobs": [], "next": ready["next"]}

    virtually_on_farm(main, tmp_path, store)


def test_a_rotated_token_keeps_its_jobs_and_others_need_no_flag(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        given: dict[str, Any] = {"scope": "put", "name": "ci"}
        made = await farm.call("POST", "/api/tokens", 201, json=given)
        assert made["all_jobs"] is False
        job = await put(farm, {"Authorization": f"Bearer {made['token']}"})
        new = await farm.call("POST", f"/api/tokens/{made['id']}/rotate")
        headers = {"Authorization": f"Bearer {new['token']}"}
        assert (await farm.call("GET", f"/api/jobs/{job['id']}", headers=headers))["id"]
        wide = await farm.call("POST", "/api/tokens", 201, json={**given, "all_jobs": True})
        assert wide["all_jobs"] is True
        listed = (await farm.call("GET", "/api/tokens"))["tokens"]
        assert {each["all_jobs"] for each in listed if each["name"] == "ci"} == {False, True}
        refused = await farm.call(
            "POST", "/api/tokens", 422, json={**given, "scope": "read", "all_jobs": True}
        )
        assert "all_jobs is for the scope put" in refused["error"]["message"]

    virtually_on_farm(main, tmp_path)
