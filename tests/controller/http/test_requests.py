"""What every route does alike: methods, unknown paths, redirects and parameters of the query."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from pollwise.controller import Controller, ControllerOptions
from pollwise.queues.http.wire import FILTER
from pollwise.runtime.clock import VirtualClock
from tests.controller.farm import Farm, virtually_on_farm


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/api/jobs", "GET, POST"),
        ("PUT", "/api/workers/poll", "GET, POST"),
        ("HEAD", "/api/workers/poll", "GET, POST"),
        ("PATCH", "/api/jobs/1/artefacts/a", "GET, HEAD, PUT"),
        ("OPTIONS", "/api/tokens", "GET, POST"),
        ("DELETE", "/openapi.json", "GET, HEAD"),
        ("POST", "/livez", "GET"),
    ],
)
def test_a_405_names_every_method_of_the_path(
    tmp_path: Path, method: str, path: str, allow: str
) -> None:
    async def main(farm: Farm) -> None:
        answer = await farm.http.request(method, path, headers=farm.admin)
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        "/api/jobs/",  # a redirect would tell that /api/jobs exists
        "/api/jobs/1/",
        "/api/workers/poll/",
        "/api/nowhere",
        "/nowhere",
        "/openapi.json/",
    ],
)
def test_without_a_token_every_path_is_the_same(tmp_path: Path, path: str) -> None:
    async def main(farm: Farm) -> None:
        for method in ("GET", "PATCH"):
            answer = await farm.http.request(method, path)
            assert answer.status_code == 401, answer.text
            assert answer.headers["www-authenticate"] == "Bearer"
            assert not {"allow", "location"} & set(answer.headers)
        found = await farm.http.get(path, headers=farm.admin)
        assert found.status_code == 404, "no redirect with a token either"

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/api/jobs?stat=dead", "after, kind, limit, state, worker"),
        ("/api/workers?stat=online", "after, limit, state"),
        ("/api/workers/poll?worker_id=1&waits=1", "max, running, wait, worker_id"),
        ("/api/tokens?scope=put", "after, limit"),
        ("/api/audit?by=me", "before, limit"),
        ("/api/jobs/1/logs?tail=1", "attempt, follow"),
        ("/api/stats?by=kind", None),
    ],
)
def test_an_unknown_parameter_is_refused(tmp_path: Path, path: str, known: str | None) -> None:
    async def main(farm: Farm) -> None:
        error = (await farm.call("GET", path, 400))["error"]
        assert error["code"] == "unknown_query"
        name = path.replace("&", "?").split("?")[-1].partition("=")[0]
        assert f"no query parameter {name!r}" in error["message"]
        said = "it has none" if known is None else f"the parameters are {known}"
        assert error["message"].endswith(said)
        refused = await farm.http.get(path)
        assert refused.status_code == 401, "the token comes first"

    virtually_on_farm(main, tmp_path)


def test_unknown_parameters_and_methods_of_a_raw_queue_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        options = ControllerOptions(queues=["mail"], artefacts=tmp_path)
        controller = Controller("memory://", options)
        transport = httpx.ASGITransport(controller.app)
        async with controller, httpx.AsyncClient(transport=transport, base_url="http://c") as http:
            _, secret = await controller.tokens.make("read", "reader")
            http.headers["Authorization"] = f"Bearer {secret}"
            for path, known in (
                (
                    "/jobs?stat=dead",
                    ", ".join(sorted({*FILTER, "keep"})),
                ),
                ("/stats?kind=mail", "by, keep, most"),
                ("?x=1", "keep"),
            ):
                answer = await http.get(f"/api/queue/mail{path}")
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (400, "unknown_query")
                assert error["message"].endswith(f"the parameters are {known}")
            answer = await http.delete("/api/queue/mail/stats")
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
            slash = await http.get("/api/queue/mail/stats/", headers={"Authorization": ""})
            assert slash.status_code == 401

    VirtualClock().run(main())
