"""The OpenAPI schema: valid, complete, and as the controller really answers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

import pollwise.controller
from pollwise.controller import Controller, ControllerOptions
from pollwise.controller.http.codes import AUDITED, CODES
from pollwise.controller.state.values import SCOPES
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.jobs import ACTIONS, STATES
from tests.controller.farm import described

SOURCE = Path(pollwise.controller.__file__).parent


def test_it_is_valid_openapi() -> None:
    import schemathesis

    schema = described()
    schemathesis.openapi.from_dict(schema).validate()
    operations = [each for path in schema["paths"].values() for each in path.values()]
    ids = [each["operationId"] for each in operations]
    assert len(ids) == len(set(ids))
    models = schema["components"]["schemas"]
    for name in re.findall(r"#/components/schemas/(\w+)", str(schema)):
        assert name in models
    schema["paths"]["/api/jobs"]["get"]["responses"] = 7
    with pytest.raises(Exception, match="7"):
        schemathesis.openapi.from_dict(schema).validate()


def test_it_has_every_route_of_a_raw_queue() -> None:
    controller = Controller("memory://")
    assert controller.queue_api is not None
    real = {
        (re.sub(r":\w+}", "}", route.path), method)  # type: ignore[attr-defined]
        for route in controller.queue_api.routes()
        for method in getattr(route, "methods", None) or ()
        if method != "HEAD"
    }
    shown = {
        (path, method.upper())
        for path, methods in described()["paths"].items()
        for method in methods
        if path.startswith("/api/queue/")
    }
    assert real == shown
    closed = Controller(MemoryQueue("agents", keep="1d"))
    assert closed.queue_api is None
    assert not any(path.startswith("/api/queue") for path in closed.app.openapi()["paths"])


def enums(schema: Any) -> Iterator[frozenset[str]]:
    if isinstance(schema, dict):
        if "enum" in schema:
            yield frozenset(schema["enum"])
        for value in schema.values():
            yield from enums(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from enums(value)


def test_it_has_the_enums() -> None:
    found = set(enums(described()))
    for values in (STATES, SCOPES, ACTIONS, AUDITED, CODES):
        assert frozenset(values) in found, values


def texts(call: ast.Call, first: int, last: int) -> list[str]:
    """The texts among these arguments of a call, also where one of two is chosen."""
    return [
        each.value
        for argument in call.args[first : last + 1]
        for each in ast.walk(argument)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]


def test_every_code_and_action_is_in_its_table() -> None:
    codes, actions = {"job", "config", "payload", "store_explained"}, {"job.put"}
    for path in [*SOURCE.rglob("*.py"), SOURCE.parent / "cli" / "serve.py"]:
        tree = ast.parse(path.read_text("utf-8"))
        for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if name == "no_such":
                codes |= {f"no_such_{each}" for each in texts(call, 0, 0)}
            elif name == "HttpError" or (name == "__init__" and path.name == "auth.py"):
                codes |= {each for each in texts(call, 1, 1) if each != "no_such_"}
            elif name == "note":
                actions |= {each for each in texts(call, 1, 2) if re.fullmatch(r"\w+\.\w+", each)}
    codes |= {"no_such_route", "no_such_method", "bad_request"}  # of the framework's errors
    assert codes == set(CODES)
    assert actions == set(AUDITED)


def test_a_raw_queue_answers_as_it_is_described(tmp_path: Path) -> None:
    schema = described()

    async def main() -> None:
        options = ControllerOptions(artefacts=tmp_path)
        controller = Controller("memory://", options)
        transport = httpx.ASGITransport(controller.app)
        async with controller, httpx.AsyncClient(transport=transport, base_url="http://c") as http:
            _, secret = await controller.tokens.make("admin", "root")
            http.headers["Authorization"] = f"Bearer {secret}"

            async def call(method: str, path: str, body: Any = None, status: int = 200) -> Any:
                shape = path.partition("?")[0]
                shape = re.sub(r"/jobs/.*", "/jobs/{job_id}", shape)
                about = schema["paths"]["/api/queue/{name}" + shape][method.lower()]
                if body is not None and status == 200:
                    check(about["requestBody"]["content"]["application/json"]["schema"], body)
                answer = await http.request(method, f"/api/queue/mail{path}", json=body)
                assert answer.status_code == status, answer.text
                said = about["responses"][str(status)]["content"]["application/json"]["schema"]
                check(said, answer.json())
                return answer.json()

            def check(shape: Any, value: Any) -> None:
                whole = {**shape, "components": schema["components"]}
                jsonschema_rs.validator_for(whole).validate(value)

            jobs = [{"kind": "a", "payload": {"n": n}, "headers": {"x": "y"}} for n in range(4)]
            ids = (await call("POST", "/put", {"jobs": jobs, "nonce": "12345678"}))["ids"]
            claim = {"worker": "w", "limit": 3, "lease": "1m", "kinds": ["a"]}
            claims = (await call("POST", "/claim", claim))["claims"]
            held = ("id", "kind", "key", "attempt", "token", "receipt")
            theirs = [{name: each[name] for name in held} for each in claims]
            renewals = [{**theirs[0], "progress": {"fraction": 0.5, "note": "half"}}]
            await call("POST", "/renew", {"lease": 60, "claims": renewals})
            await call("POST", "/cancel", {"ids": [theirs[0]["id"], ids[3]]})
            settlements = [
                {**theirs[1], "action": "dead", "error": "no"},
                {**theirs[2], "action": "done", "result": [1]},
                {**theirs[2], "token": 7, "action": "done"},
            ]
            assert (await call("POST", "/settle", {"settlements": settlements}))["lost"]
            for path in (
                "",
                "/stats",
                "/stats?by=kind",
                "/jobs",
                "/arrivals",
                f"/jobs/{ids[0]}",
                "/jobs/none",
            ):
                await call("GET", path)
            await call("POST", "/retry", {"ids": None})
            await call("POST", "/drop", {"ids": []})
            await call("POST", "/prune")
            await call("POST", "/hint", {"message": "m"})
            await call("POST", "/abandon", {"nonce": "12345678"})
            await call("POST", "/put", {"jobs": [{"kind": ""}]}, 422)
            await call("GET", "/jobs?x=1", None, 400)

    VirtualClock().run(main())
