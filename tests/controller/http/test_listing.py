"""Lists of jobs: pages that follow each other, and read a bounded number of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollwise.queues.views import EXAMINED_MAX
from tests.controller.farm import Farm, virtually_on_farm


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_pages_of_a_state_follow_each_other(tmp_path: Path, store: str) -> None:
    async def main(farm: Farm) -> None:
        jobs = [{"kind": "build" if n % 2 else "test"} for n in range(9)]
        await farm.call("POST", "/api/jobs", 201, json=jobs)
        put = (await farm.call("GET", "/api/jobs"))["jobs"]
        wanted = {each["id"] for each in put if each["kind"] == "build"}
        for asked in ({"state": "ready", "kind": "build"}, {"kind": "build"}):
            found: list[str] = []
            query: dict[str, object] = {**asked, "limit": 2}
            page = await farm.call("GET", "/api/jobs", params=query)
            while True:
                found += [each["id"] for each in page["jobs"]]
                if page["next"] is None:
                    break
                page = await farm.call("GET", "/api/jobs", params={**query, "after": page["next"]})
            assert (len(found), set(found)) == (4, wanted)
        await farm.call("GET", "/api/jobs?state=ready&after=nonsense!", 422)
        await farm.call("GET", "/api/jobs?after=nonsense!", 422)

    virtually_on_farm(main, tmp_path, store)


def test_a_list_of_a_state_reads_no_other_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even those that were put before: a list in put order would have to."""

    async def main(farm: Farm) -> None:
        for _ in range(3):
            await farm.call("POST", "/api/jobs", 201, json=[{"kind": "build"}] * 1000)
        queue = farm.controller.queue
        examined: list[int] = []
        read = queue.page

        async def counted(chosen: object) -> object:
            page = await read(chosen)  # type: ignore[arg-type]
            examined.append(page.examined)
            return page

        async def refused(*_: object, **__: object) -> None:
            raise AssertionError("a list in put order")

        monkeypatch.setattr(queue, "page", counted)
        monkeypatch.setattr(queue, "jobs", refused)
        for state in ("done", "dead", "cancelled", "leased"):
            assert (await farm.call("GET", f"/api/jobs?state={state}"))["jobs"] == []
        assert examined == [0, 0, 0, 0]
        await farm.call("GET", "/api/jobs?kind=none")
        assert examined[-1] <= EXAMINED_MAX
        monkeypatch.undo()

    virtually_on_farm(main, tmp_path, "sqlite")
