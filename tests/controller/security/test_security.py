"""Who may what: tokens and scopes on every route, and what is refused at the door."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pollwise.controller import Controller, ControllerOptions
from pollwise.controller.state.values import SCOPES
from pollwise.errors import ConfigError
from tests.controller.farm import URL, Farm, described, virtually_on_farm

OPEN = {"/livez", "/readyz"}
ID = "0" * 32


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every method and path that the schema describes."""
    for path, methods in described()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


OPERATIONS = list(operations())


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: "x" if found[1] == "name" else ID, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [(method, path) for method, path, _ in OPERATIONS],
    ids=[f"{method} {path}" for method, path, _ in OPERATIONS],
)
def test_every_route_but_health_needs_a_token(tmp_path: Path, method: str, path: str) -> None:
    async def main(farm: Farm) -> None:
        expired = await farm.token("admin", expires_in="10s")
        row, revoked = await farm.controller.tokens.make("admin", "revoked")
        await farm.controller.tokens.revoke(row.id)
        await asyncio.sleep(20)
        bad: list[dict[str, str]] = [
            {},
            {"Authorization": ""},
            {"Authorization": "Bearer "},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer " + "x" * 5000},
            {"Authorization": "Basic " + farm.admin["Authorization"].removeprefix("Bearer ")},
            {"Authorization": farm.admin["Authorization"][:-1]},
            expired,
            {"Authorization": f"Bearer {revoked}"},
        ]
        url = filled(path) + (f"?worker_id={ID}" if path.endswith("/poll") else "")
        body = {"worker_id": ID} if path.endswith("/poll") and method == "POST" else None
        for headers in bad:
            answer = await farm.http.request(method, url, headers=headers, json=body)
            if path in OPEN:
                assert answer.status_code == 200
                continue
            assert answer.status_code == 401, (headers, answer.text)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            if method != "HEAD":
                assert answer.json()["error"]["code"] == "unauthorized"
            assert "wrong" not in answer.text

    virtually_on_farm(main, tmp_path)


def test_the_schema_says_so() -> None:
    for method, path, operation in OPERATIONS:
        needs = operation.get("security", [{"bearer": []}])
        assert needs == ([] if path in OPEN else [{"bearer": []}]), f"{method} {path}"
    schema = described()
    assert schema["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert schema["security"] == [{"bearer": []}]


def test_the_schema_is_complete_and_has_no_loose_reference() -> None:
    schema = described()
    names = set(schema["components"]["schemas"])
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(schema)))
    assert used <= names
    for method, path, operation in OPERATIONS:
        assert operation["summary"], f"{method} {path}"
        statuses = operation["responses"]
        assert any(status.startswith("2") for status in statuses), f"{method} {path}"
        if path not in OPEN:
            assert "401" in statuses, f"{method} {path}"
        for status, answer in statuses.items():
            if status[0] in "45":
                content = answer["content"]["application/json"]["schema"]
                assert content == {"$ref": "#/components/schemas/Error"}, f"{method} {path}"


def all_routes(routes: Any) -> Iterator[Any]:
    for route in routes:
        included = getattr(route, "original_router", None)
        yield from [route] if included is None else all_routes(included.routes)


def test_what_may_be_wrong_with_a_file_or_a_body_is_described() -> None:
    described = {(method, path): set(each["responses"]) for method, path, each in OPERATIONS}
    for files in (("PUT", "/api/jobs/{job_id}/artefacts/{name}"), ("POST", "/api/jobs")):
        assert "507" in described[files]
    for place, statuses in described.items():
        if "413" in statuses:  # it reads a body
            assert {"408", "415"} <= statuses, place
    assert "413" not in described["GET", "/api/workers/poll"]


def test_every_route_of_the_application_is_described() -> None:
    app = Controller("memory://").app
    paths = set(app.openapi()["paths"])
    for route in all_routes(app.routes):
        path = re.sub(r":path\}", "}", getattr(route, "path", ""))
        if path.startswith("/api/queue/") or path in ("/openapi.json", "/api/workers/ws"):
            continue  # those of raw queues have a page of their own
        assert path in paths, path


def test_a_wrong_request_without_a_token_is_told_of_the_token(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        for method, path in (
            ("GET", "/api/workers/poll"),
            ("GET", "/api/workers/poll?max=x"),
            ("POST", "/api/workers/poll"),
            ("GET", "/api/jobs?limit=x"),
            ("POST", f"/api/jobs/{ID}/logs"),
        ):
            answer = await farm.http.request(method, path)
            assert answer.status_code == 401, f"{method} {path}: {answer.text}"

    virtually_on_farm(main, tmp_path)


SEEING = {"admin", "read", "put", "operate"}
#: What each scope may do: method, path, and the answer to one who may (404: it is not there).
MAY: list[tuple[str, str, Any, set[str]]] = [
    ("POST", "/api/workers/register", {"name": "w"}, {"admin", "worker"}),
    ("GET", "/api/workers", None, SEEING),
    ("GET", f"/api/workers/{ID}", None, SEEING),
    ("POST", f"/api/workers/{ID}/drain", {}, {"admin", "operate"}),
    ("POST", f"/api/workers/{ID}/unregister", None, {"admin"}),
    ("POST", "/api/jobs", {"kind": "build"}, {"admin", "put"}),
    ("GET", "/api/jobs", None, SEEING | {"own"}),
    ("GET", f"/api/jobs/{ID}", None, SEEING | {"own"}),
    ("POST", f"/api/jobs/{ID}/cancel", None, {"admin", "put", "operate"}),
    ("POST", f"/api/jobs/{ID}/retry", None, {"admin", "put", "operate"}),
    ("GET", f"/api/jobs/{ID}/logs", None, SEEING | {"own"}),
    ("GET", f"/api/jobs/{ID}/artefacts", None, SEEING | {"own"}),
    ("GET", "/api/stats", None, SEEING),
    ("GET", "/api/tokens", None, {"admin"}),
    ("POST", "/api/tokens", {"scope": "admin", "name": "x"}, {"admin"}),
    ("DELETE", f"/api/tokens/{ID}", None, {"admin"}),
    ("POST", f"/api/tokens/{ID}/rotate", {}, {"admin"}),
    ("GET", "/api/audit", None, {"admin", "operate"}),
    ("GET", "/metrics", None, {"admin", "read"}),
    ("GET", f"/api/workers/poll?worker_id={ID}", None, {"admin", "own"}),
    ("GET", "/openapi.json", None, {*SCOPES, "own"}),
]


def test_scopes(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        tokens: dict[str, Any] = {scope: await farm.token(scope) for scope in SCOPES}
        tokens["own"] = agent.headers
        for method, path, body, allowed in MAY:
            for scope, headers in tokens.items():
                answer = await farm.http.request(method, path, headers=headers, json=body)
                where = f"{method} {path} as {scope}: {answer.status_code} {answer.text[:200]}"
                if scope in allowed:
                    assert answer.status_code in (200, 201, 404), where
                else:
                    # Another worker is as good as not there for a worker.
                    assert answer.status_code in (403, 404), where
                    assert answer.status_code == 403 or scope == "own", where

    virtually_on_farm(main, tmp_path)


def test_a_worker_sees_only_its_own_jobs(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        mine, other = await farm.register("mine"), await farm.register("other")
        job = await farm.put(payload="secret")
        await mine.job()
        hidden = await farm.put(payload="hidden")
        path = f"/api/jobs/{job['id']}"
        for sub in ("", "/logs", "/artefacts", "/inputs", "/result"):
            seen = await farm.http.get(path + sub, headers=mine.headers)
            assert seen.status_code in (200, 409), sub
            unseen = await farm.http.get(path + sub, headers=other.headers)
            assert unseen.status_code == 404, sub
            assert "secret" not in unseen.text
        for headers, status in ((mine.headers, 201), (other.headers, 409)):
            put = await farm.http.put(f"{path}/artefacts/a", content=b"x", headers=headers)
            assert put.status_code == status
            log = await farm.http.post(f"{path}/logs?offset=0", content=b"x", headers=headers)
            assert log.status_code == (200 if status == 201 else 409)
        # The same answer for the job of another and for one that does not exist.
        said = [(await other.heartbeat(each)).json()["error"] for each in (job["id"], "none")]
        assert said[0] == {**said[1], "message": said[1]["message"].replace("none", job["id"])}
        assert (await other.finish(job, result="forged"))["lost"] == [job["id"]]
        listed = await farm.http.get("/api/jobs", headers=mine.headers)
        assert [each["id"] for each in listed.json()["jobs"]] == [job["id"]]
        elsewhere = await farm.http.get(f"/api/jobs?worker={other.id}", headers=mine.headers)
        assert [each["id"] for each in elsewhere.json()["jobs"]] == [job["id"]]
        for method, sub in (("POST", "/cancel"), ("POST", "/retry")):
            answer = await farm.http.request(method, path + sub, headers=mine.headers)
            assert answer.status_code == 403
        stolen = await farm.http.get(
            f"/api/workers/poll?worker_id={other.id}", headers=mine.headers
        )
        assert stolen.status_code == 404
        assert (await farm.job(hidden["id"]))["state"] == "ready"

    virtually_on_farm(main, tmp_path)


def test_what_a_lost_job_was_is_not_written_any_more(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        first, second = await farm.register(), await farm.register()
        job = await farm.put()
        await first.job()
        await asyncio.sleep(65)
        assert (await second.poll())["job"] is None
        await asyncio.sleep(65)
        await second.job()
        path = f"/api/jobs/{job['id']}"
        put = await farm.http.put(f"{path}/artefacts/a", content=b"x", headers=first.headers)
        log = await farm.http.post(f"{path}/logs?offset=0", content=b"x", headers=first.headers)
        for answer in (put, log, await first.heartbeat(job["id"])):
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "lease_lost")
        await second.finish(job)
        put = await farm.http.put(f"{path}/artefacts/a", content=b"x", headers=second.headers)
        assert put.status_code == 409

    virtually_on_farm(main, tmp_path)


def test_tokens_by_the_api(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        body = {"scope": "put", "name": "ci", "expires_in_s": 60}
        made = await farm.call("POST", "/api/tokens", 201, json=body)
        headers = {"Authorization": f"Bearer {made['token']}"}
        assert (await farm.http.get("/api/jobs", headers=headers)).status_code == 200
        listed = await farm.call("GET", "/api/tokens")
        assert made["token"] not in json.dumps(listed)
        assert "hash" not in json.dumps(listed)
        rotated = await farm.call("POST", f"/api/tokens/{made['id']}/rotate")
        assert (await farm.http.get("/api/jobs", headers=headers)).status_code == 401
        headers = {"Authorization": f"Bearer {rotated['token']}"}
        assert (await farm.http.get("/api/jobs", headers=headers)).status_code == 200
        await farm.call("DELETE", f"/api/tokens/{made['id']}")
        assert (await farm.http.get("/api/jobs", headers=headers)).status_code == 401
        await farm.call("POST", f"/api/tokens/{made['id']}/rotate", 409)
        await farm.call("DELETE", f"/api/tokens/{ID}", 404)
        for wrong in ({"scope": "root", "name": "x"}, {"scope": "admin"}, {**body, "more": 1}):
            await farm.call("POST", "/api/tokens", 422, json=wrong)
        await farm.call("POST", "/api/tokens", 422, json={**body, "expires_in_s": -1})
        audit = await farm.call("GET", "/api/audit")
        actions = [entry["action"] for entry in audit["entries"]]
        assert actions[:3] == ["token.revoke", "token.rotate", "token.create"]
        assert made["token"] not in json.dumps(audit)

    virtually_on_farm(main, tmp_path)


def test_a_workers_token_expires(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        assert (await agent.get()).status_code == 200
        await asyncio.sleep(3601)
        assert (await agent.get()).status_code == 401

    virtually_on_farm(main, tmp_path, registered_for="1h")


# What is refused at the door


@pytest.mark.parametrize(
    "path",
    ["/api/jobs", "/api/workers/register", "/api/tokens", f"/api/jobs/{ID}/heartbeat"],
)
def test_bodies_are_bounded(tmp_path: Path, path: str) -> None:
    async def main(farm: Farm) -> None:
        job = await farm.put()
        agent = await farm.register()
        await agent.job()
        url = path.replace(ID, job["id"])
        headers = agent.headers if "heartbeat" in path else farm.admin
        declared = await farm.http.post(url, content=b" " * 2_000_000, headers=headers)
        assert declared.status_code == 413, declared.text

        async def endless() -> Any:
            while True:
                yield b" " * 65536

        counted = await farm.http.post(url, content=endless(), headers=headers)
        assert counted.status_code == 413
        packed = await farm.http.post(
            url, content=b"x", headers={**headers, "Content-Encoding": "gzip"}
        )
        assert packed.status_code == 415

    virtually_on_farm(main, tmp_path)


@pytest.mark.parametrize(
    "job",
    [
        {},
        [],
        None,
        {"kind": ""},
        {"kind": "a\nb"},
        {"kind": "a#b"},
        {"kind": "x" * 184},
        {"kind": 7},
        {"kind": "a", "more": 1},
        {"kind": "a", "priority": 1001},
        {"kind": "a", "priority": True},
        {"kind": "a", "delay_s": -1},
        {"kind": "a", "timeout_s": 0},
        {"kind": "a", "attempts": 0},
        {"kind": "a", "key": ""},
        {"kind": "a", "unique": "a\x00b"},
        {"kind": "a", "requires": []},
        {"kind": "a", "requires": {"memory": ">=lots"}},
        {"kind": "a", "requires": {"memory": ">="}},
        {"kind": "a", "requires": {"memory": None}},
        {"kind": "a", "requires": {"memory": {}}},
        {"kind": "a", "requires": {"": 1}},
        {"kind": "a", "requires": {"a b": 1}},
        {"kind": "a", "requires": {"x": "y" * 101}},
        {"kind": "a", "requires": {f"x{n}": 1 for n in range(21)}},
        {"kind": "a", "requires": {"x": []}},
    ],
    ids=lambda each: json.dumps(each)[:60],
)
def test_a_bad_job_is_refused_before_anything_changed(tmp_path: Path, job: Any) -> None:
    async def main(farm: Farm) -> None:
        said = await farm.call("POST", "/api/jobs", 422, json=job)
        assert said["error"]["code"] == "invalid"
        assert said["error"]["what_to_do"]
        assert (await farm.call("GET", "/api/jobs"))["jobs"] == []
        assert (await farm.queue.stats()).ready == 0

    virtually_on_farm(main, tmp_path)


def test_raw_json_that_is_none_is_refused(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        for body in (b"{", b'{"kind": "a", "payload": ' + b"[" * 5000 + b"]" * 5000 + b"}"):
            answer = await farm.http.post("/api/jobs", content=body, headers=farm.admin)
            assert answer.status_code in (400, 422), answer.text
        for body in (b'{"kind": "a", "payload": NaN}', b'{"kind": "a", "payload": "\\ud800"}'):
            answer = await farm.http.post("/api/jobs", content=body, headers=farm.admin)
            assert answer.status_code == 422

    virtually_on_farm(main, tmp_path)


def test_names_cannot_forge_lines_or_headers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(farm: Farm) -> None:
        evil = "mini\r\nX-Forged: 1\x1b[2J"
        with caplog.at_level(logging.DEBUG):
            await farm.call("POST", "/api/workers/register", 422, json={"name": evil})
            token = {"scope": "admin", "name": evil}
            await farm.call("POST", "/api/tokens", 422, json=token)
            job = await farm.put("build")
            agent = await farm.register()
            await agent.job()
            await agent.finish(job, "failed", error=evil)
            await farm.http.get("/api/jobs/x%0d%0aX-Forged:%201", headers=farm.admin)
            await farm.http.get("/api/jobs?state=%0d%0aevil", headers=farm.admin)
            path = f"/api/jobs/{job['id']}/artefacts/a%0d%0aX-Forged:1"
            found = await farm.http.get(path, headers=farm.admin)
            assert "X-Forged" not in found.headers
        for record in caplog.records:
            text = record.getMessage()
            assert "\x1b" not in text
            assert "\n" not in text or record.exc_info
        audit = await farm.call("GET", "/api/audit")
        assert all(entry["what"].isprintable() for entry in audit["entries"])

    virtually_on_farm(main, tmp_path)


def test_errors_are_all_of_one_form(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        for method, path, status in (
            ("GET", "/nowhere", 404),
            ("DELETE", "/api/jobs", 405),
            ("PUT", "/api/workers/poll", 405),
            ("GET", "/api/jobs?limit=x", 422),
            ("GET", "/api/jobs?limit=0", 422),
            ("GET", "/api/jobs?after=x", 422),
            ("GET", "/api/jobs?after=..", 422),
            ("GET", "/api/jobs?state=lost", 422),
            ("GET", f"/api/jobs/{ID}", 404),
            ("GET", "/api/audit?before=0", 422),
        ):
            said = await farm.call(method, path, status)
            assert set(said["error"]) == {"code", "message", "what_to_do"}

    virtually_on_farm(main, tmp_path)


def test_what_breaks_is_500_without_details(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        async def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("postgresql://app:hunter2@db/shop")

        farm.queue.page = broken
        transport = httpx.ASGITransport(farm.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://c") as http:
            answer = await http.get("/api/jobs", headers=farm.admin)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal"
        assert "hunter2" not in answer.text

    virtually_on_farm(main, tmp_path)


def test_health_and_metrics(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        agent = await farm.register()
        await farm.put()
        await agent.job()
        text = (await farm.http.get("/metrics", headers=farm.admin)).text
        assert 'pollwise_controller_poll_total{queue="agents",result="job"} 1.0' in text
        assert 'pollwise_controller_workers{queue="agents",state="online"} 1.0' in text
        assert 'pollwise_controller_jobs{queue="agents",state="leased"} 1.0' in text
        assert 'route="/api/jobs"' in text
        ready = await farm.http.get("/readyz")
        assert ready.json() == {"status": "ok"}
        await farm.controller.storage.close()
        gone = await farm.http.get("/readyz")
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "not_ready")
        assert (await farm.http.get("/livez")).status_code == 200

    virtually_on_farm(main, tmp_path)


def test_a_controller_without_a_place_for_files_is_not_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "artefacts"

    async def main(farm: Farm) -> None:
        async def told() -> str:
            answer = await farm.http.get("/readyz")
            assert answer.status_code == 503
            assert answer.headers["Retry-After"] == "5"
            assert str(tmp_path) not in answer.text, "where it is, is not for everybody"
            error = answer.json()["error"]
            assert error["code"] == "not_ready"
            return str(error["message"])

        assert folder.is_dir(), "it is made at the start"
        assert (await farm.http.get("/readyz")).json() == {"status": "ok"}
        folder.rmdir()
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="pollwise"):
            assert await told() == "the folder for artefacts is gone"
        assert str(folder) in caplog.text, "but who runs it is told"
        folder.write_text("a file")
        assert await told() == "the folder for artefacts is gone"
        folder.unlink()
        folder.mkdir()
        assert (await farm.http.get("/readyz")).status_code == 200
        # Root may write anywhere, so the system's answer is given in its place.
        monkeypatch.setattr("pollwise.controller.files.blobs.os.access", lambda *_: False)
        assert await told() == "the folder for artefacts cannot be written to"

    virtually_on_farm(main, tmp_path)


def test_files_that_have_no_place_keep_nobody_from_working(tmp_path: Path) -> None:
    (tmp_path / "artefacts").write_text("a file is in its place")

    async def main(farm: Farm) -> None:
        agent = await farm.register()
        job = await farm.put()
        assert (await agent.job())["id"] == job["id"]
        error = (await farm.http.get("/readyz")).json()["error"]
        assert error["message"] == "the folder for artefacts cannot be made"

    virtually_on_farm(main, tmp_path)


def test_metrics_may_be_open(tmp_path: Path) -> None:
    async def main(farm: Farm) -> None:
        assert (await farm.http.get("/metrics")).status_code == 200

    virtually_on_farm(main, tmp_path, metrics_open=True)


def test_queues_are_the_admins_unless_they_are_named(tmp_path: Path) -> None:
    async def main() -> None:
        made = Controller(f"sqlite:///{tmp_path}/jobs.db", ControllerOptions(queues="mail, more"))
        transport = httpx.ASGITransport(made.app)
        async with made, httpx.AsyncClient(transport=transport, base_url=URL) as http:

            async def put(scope: str, name: str, call: str = "claim") -> Any:
                _, secret = await made.tokens.make(scope, scope)
                body = {"worker": "me"} if call == "claim" else {"jobs": [{"kind": "a"}]}
                headers = {"Authorization": f"Bearer {secret}"}
                return await http.post(f"/api/queue/{name}/{call}", json=body, headers=headers)

            for name in ("default", "Mail", "agents"):
                for scope, call in (("worker", "claim"), ("put", "put")):
                    no = await put(scope, name, call)
                    assert (no.status_code, no.json()["error"]["code"]) == (403, "queue_not_open")
                    assert "controller.queues" in no.json()["error"]["what_to_do"]
            assert (await put("admin", "default")).status_code == 200
            for name in ("mail", "more"):
                assert (await put("put", name, "put")).status_code == 200
                assert len((await put("worker", name)).json()["claims"]) == 1
                assert (await put("put", name)).json()["error"]["code"] == "forbidden"

    asyncio.run(main())


def test_a_queue_that_cannot_be_named_is_refused() -> None:
    assert ControllerOptions(queues=None).queues == ()
    assert ControllerOptions(queues=["a", "b"]).queues == ("a", "b")
    with pytest.raises(ConfigError, match="queues"):
        ControllerOptions(queues="a\nb")
