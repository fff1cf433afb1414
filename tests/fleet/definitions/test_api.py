"""Targets over HTTP: defined, changed and removed; and the description of the whole API."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from starlette.routing import Mount, Route

from pollwise.fleet import Fleet
from pollwise.fleet.api import Bearer, served
from pollwise.fleet.api.description import description
from pollwise.fleet.control import Control
from pollwise.fleet.definitions.sources import TargetSources
from pollwise.fleet.file import read
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events
from tests.fleet.test_api import Desk, desk
from tests.fleet.world import fleet_for, running

WEB = {"name": "shop", "type": "http", "url": "http://127.0.0.1:1/a?key=hunter2", "interval": "1h"}
FILE = '[[target]]\nname = "ours"\ntype = "tcp"\naddress = "127.0.0.1:1"\n'


async def control_of(clock: VirtualClock, folder: Path, text: str = FILE) -> Control:
    path = folder / "fleet.toml"
    path.write_text(text)
    store = SqliteFleetStore(folder / "fleet.db", clock=clock)
    fleet = fleet_for(clock, store=store)
    control = Control(fleet, targets=TargetSources(fleet, read(path)))
    await control.start()
    return control


def test_targets_are_defined_read_changed_and_removed(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        control = await control_of(clock, tmp_path)
        store = control.fleet.store
        assert store is not None
        async with running(control.fleet), desk(control, tmp_path) as client:
            await clock.advance(1)
            answer = await client.ask("POST", "/api/fleet/targets", WEB)
            assert (answer.status_code, answer.headers["etag"]) == (201, '"1"')
            made = answer.json()
            assert (made["name"], made["from"], made["type"]) == ("shop", "api", "http")
            assert made["definition"] == {**WEB, "url": "http://127.0.0.1:1/a?key=***"}
            assert made["defined"]["version"] == 1
            assert made["defined"]["by"].startswith("api: token from ")
            found = await client.good("GET", "/api/fleet/targets/shop")
            assert found["definition"] == made["definition"]
            changed = {**WEB, "interval": "5m"}
            tag = {"If-Match": '"7"'}
            assert (await _with(client, "PUT", changed, tag)).status_code == 412
            answer = await _with(client, "PUT", changed, {"If-Match": '"1"'})
            assert (answer.status_code, answer.headers["etag"]) == (200, '"2"')
            assert answer.json()["definition"]["interval"] == "5m"
            answer = await client.ask("PUT", "/api/fleet/targets/a/b c", {**WEB, "name": "a/b c"})
            assert answer.status_code == 201
            assert await client.good("DELETE", "/api/fleet/targets/shop") == {"removed": "shop"}
            assert (await client.bad("DELETE", "/api/fleet/targets/shop"))[0] == 404
            assert (await client.bad("GET", "/api/fleet/targets/shop"))[0] == 404
            assert control.fleet.names() == ["a/b c", "ours"]
            entries = (await client.good("GET", "/api/fleet/audit"))["entries"]
            assert [(each["action"], each["what"]) for each in entries] == [
                ("target.remove", "'shop'"), ("target.set", "'a/b c'"), ("target.set", "'shop'"),
                ("target.add", "'shop'"),
            ]  # fmt: skip
            assert "hunter2" not in json.dumps(entries)
        await store.close()

    clock.run(main())


async def _with(client: Desk, method: str, body: Any, headers: dict[str, str]) -> Any:
    headers = {"Authorization": f"Bearer {client.token}", **headers}
    return await client._client.request(
        method, "/api/fleet/targets/shop", json=body, headers=headers
    )


def test_what_cannot_be_is_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        control = await control_of(clock, tmp_path)
        store = control.fleet.store
        assert store is not None
        async with desk(control, tmp_path) as client:
            for method, path in (("POST", "/targets"), ("PUT", "/targets/x")):
                wrong = {"name": "x", "type": "http", "intervall": "5s", "timeout": "2h"}
                answer = await client.ask(method, f"/api/fleet{path}", wrong)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (400, "invalid")
                assert error["items"] == [
                    "target 'x': timeout = '2h' is above the limit of 3600 s",
                    "target 'x': url is missing",
                    "target 'x': intervall is not an option; did you mean interval?",
                ]
            for method, body in (("PUT", WEB | {"name": "ours"}), ("DELETE", None)):
                status, told = await client.bad(method, "/api/fleet/targets/ours", body)
                assert status == 409
                assert re.search(r"'ours' is defined in .*fleet\.toml, which is the truth", told)
            status, told = await client.bad("POST", "/api/fleet/targets", WEB | {"name": "ours"})
            assert status == 409
            status, told = await client.bad("PUT", "/api/fleet/targets/other", WEB)
            assert (status, "is not the name in the address" in told) == (400, True)
            runs: Any = {"name": "x", "type": "command", "run": ["id"]}
            answer = await client.ask("POST", "/api/fleet/targets", runs)
            assert "fleet.api_may_run" in answer.json()["error"]["message"]
            await client.good("POST", "/api/fleet/targets", WEB)
            answer = await client.ask("POST", "/api/fleet/targets", WEB)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (409, "conflict")
            assert "already exists" in error["message"]
            answer = await client.ask("POST", "/api/fleet/targets", WEB, token="no")
            assert answer.status_code == 401
            url, headers = "/api/fleet/targets", {"Authorization": f"Bearer {client.token}"}
            for ca in ("/etc/passwd", "/no/such"):  # the same answer: no looking around
                steps = {"type": "steps", "steps": [{"url": WEB["url"], "ca": ca}]}
                for given in ({**WEB, "ca": ca}, steps):
                    answer = await client.ask("POST", url, {**given, "name": "ca"})
                    [told] = answer.json()["error"]["items"]
                    assert told.startswith("ca opens a file of the polling machine; put it into")
            half = b'{"name": "x", "labels": {"a": "\\ud800"}}'
            for content in (b'{"name": NaN}', b"[" * 100_000, b'{"a": ' * 5000, b"[1]", half):
                answer = await client._client.post(url, content=content, headers=headers)
                assert answer.status_code == 400
            huge = json.dumps({**WEB, "name": "huge", "headers": {"a": "x" * 70_000}}).encode()
            answer = await client._client.post(url, content=huge, headers=headers)
            assert (answer.status_code, "65536 bytes" in answer.text) == (400, True)
            assert [each.name for each in await store.definitions()] == ["shop"]
        await store.close()

    clock.run(main())


# The description


def routes_of(app: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for each in app.routes:
        if isinstance(each, Mount):
            yield from routes_of(each.app, each.path)
        elif isinstance(each, Route):
            path = prefix + re.sub(r":\w+}", "}", each.path)
            yield from ((path, method) for method in each.methods or () if method != "HEAD")


class Client:
    """Asks an application, from code that is not async."""

    def __init__(self, app: Any, token: str | None, runner: asyncio.Runner) -> None:
        self.app, self._runner = app, runner
        self.headers = {"Authorization": f"Bearer {token}"}
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://fleet")

    def ask(self, method: str, url: str, **given: Any) -> httpx.Response:
        headers = {**(given.pop("headers", None) or {}), **self.headers}
        return self._runner.run(self._client.request(method, url, headers=headers, **given))


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a fleet that does not run, with a target in its file and one in its store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.toml").write_text(FILE)
    store = SqliteFleetStore(tmp_path / "fleet.db")
    fleet = Fleet(store=store, events=Events(quiet=True))
    control = Control(fleet, targets=TargetSources(fleet, read("fleet.toml")))
    bearer, token = Bearer.from_file(tmp_path / "token")
    with asyncio.Runner() as runner:
        runner.run(control.start())
        made = Client(served(control, bearer), token, runner)
        assert made.ask("POST", "/api/fleet/targets", json=WEB).status_code == 201
        yield made
        runner.run(store.close())


def test_the_description_is_valid_has_every_route_and_needs_a_token(client: Client) -> None:
    shown = client.ask("GET", "/openapi.json").json()
    for name in re.findall(r"#/components/schemas/(\w+)", json.dumps(shown)):
        assert name in shown["components"]["schemas"]
    assert shown == json.loads(json.dumps(description()))
    told = {(path, method.upper()) for path, each in shown["paths"].items() for method in each}
    real = set(routes_of(client.app)) - {("/openapi.json", "GET")}
    assert told == real - {("/api/fleet/openapi.json", "GET")}
    inner = client.ask("GET", "/api/fleet/openapi.json").json()
    assert inner["paths"].keys() == {path for path in shown["paths"] if path.startswith("/api")}
    ids = [each["operationId"] for path in shown["paths"].values() for each in path.values()]
    assert len(ids) == len(set(ids))
    client.headers["Authorization"], token = "no", client.headers["Authorization"]
    assert client.ask("GET", "/openapi.json").status_code == 401
    client.headers["Authorization"] = token
    target = client.ask("GET", "/api/fleet/targets/shop").json()
    assert target.keys() - {"last_success_at", "last_error", "last_error_at"} <= (
        shown["components"]["schemas"]["Target"]["properties"].keys()
    )


def tried(client: Client, operation: Any, mode: str) -> int:
    """How many requests of an operation were sent; none of them made the fleet fail."""
    from schemathesis import GenerationMode

    sent = 0

    @settings(
        max_examples=2,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(GenerationMode(mode)))
    def send(case: Any) -> None:
        nonlocal sent
        for parameter in case.path_parameters or {}:
            known = {"name": "shop", "what": "pause"}
            case.path_parameters[parameter] = known.get(parameter, "1")
        request = case.as_transport_kwargs(base_url="http://fleet")
        body = {key: request[key] for key in ("json", "params") if request.get(key)}
        answer = client.ask(request["method"], request["url"], **body)
        sent += 1
        assert answer.status_code < 500, f"{request}\n{answer.text}"
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) - {"items"} == {"code", "message", "what_to_do"}

    try:
        send()
    except Exception as error:
        if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
            raise
    return sent


def test_no_request_makes_it_fail(client: Client) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        import schemathesis

        schema = schemathesis.openapi.from_dict(description())
        schema.validate()
        every: Any = schema.get_all_operations()
        for operation in (each.ok() for each in every):
            if operation.path not in ("/livez", "/readyz"):
                assert tried(client, operation, "positive"), operation.path
                tried(client, operation, "negative")
