"""Whatever the schema allows, and whatever it does not, no request makes the controller fail.

Schemathesis makes the requests, from the schema alone; a real server answers them.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.agent.processes import ServeProcess
from tests.controller.farm import described
from tests.support.servers import Servers

#: How many requests of each sort for each method and path, and how many in `make soak`.
EXAMPLES, MANY = 6, 100
#: Longer than this no poll is held here, in seconds.
WAIT = 0.02
#: How many workers and tokens there are, and a third of the jobs.
POOL = 12
ID = "0" * 32
#: How often a request is about what is there: what is not there gives 404, and ends early.
SHARE_OF_KNOWN = 0.85


class Grounds:
    """A controller with something of everything, so that requests find what they ask for."""

    def __init__(self, server: ServeProcess) -> None:
        self.server = server
        self.client = httpx.Client(base_url=server.url, headers=server.headers, timeout=20)
        self.workers = [self._worker(number) for number in range(POOL)]
        jobs = [self._job(number) for number in range(3 * POOL)]
        self.with_files: list[str] = []
        for worker_id in self.workers[: POOL // 2]:
            self._take(worker_id)
        self.ids = {
            "job_id": [*jobs, ID],
            "worker_id": [*self.workers, ID],
            "token_id": [*(self._token(number) for number in range(POOL)), ID],
            "queue": ["mail", "images"],
            "name": ["made.txt", "made.txt", "made.txt", "dir/made.txt", "none", "..%2fmade.txt"],
        }

    def _worker(self, number: int) -> str:
        body = {"name": f"w{number}", "capabilities": {"n": number % 3}}
        return str(self._said("POST", "/api/workers/register", json=body)["worker_id"])

    def _job(self, number: int) -> str:
        body = {"kind": f"k{number % 4}", "payload": number, "requires": {"n": "<2"}}
        files = {"job": (None, json.dumps(body)), "f": ("made.txt", b"made")}
        given: dict[str, Any] = {"files": files} if number % 2 else {"json": body}
        return str(self._said("POST", "/api/jobs", **given)["id"])

    def _take(self, worker_id: str) -> None:
        found = self._said("GET", f"/api/workers/poll?worker_id={worker_id}&max=4")["jobs"]
        for job in found:
            path = f"/api/jobs/{job['id']}"
            self._said("PUT", f"{path}/artefacts/made.txt", content=b"made")
            self.with_files.append(job["id"])
            self._said("POST", f"{path}/logs?offset=0", content=b"line\n")
        if found:
            finished = [{"job_id": found[0]["id"], "state": "done", "result": 1}]
            body = {"worker_id": worker_id, "max": 0, "finished": finished}
            self._said("POST", "/api/workers/poll", json=body)

    def _token(self, number: int) -> str:
        body = {"scope": "put", "name": f"t{number}"}
        return str(self._said("POST", "/api/tokens", json=body)["id"])

    def _said(self, method: str, path: str, **given: Any) -> Any:
        answer = self.client.request(method, path, **given)
        assert answer.status_code < 300, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def grounds(servers: Servers) -> Iterator[Grounds]:
    server = servers.begin(ServeProcess(servers), {})
    made = Grounds(server)
    yield made
    made.client.close()
    server.close()


@cache
def operations() -> dict[str, Any]:
    """Every method and path that the schema describes, as Schemathesis reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        import schemathesis

        schema = schemathesis.openapi.from_dict(described())
        operations: Any = schema.get_all_operations()
        found = [each.ok() for each in operations]
    return {f"{each.method.upper()} {each.path}": each for each in found}


NAMES = [
    f"{method.upper()} {path}"
    for path, operation in described()["paths"].items()
    for method in operation
]


def test_schemathesis_reads_every_operation() -> None:
    assert list(operations()) == NAMES


@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(MANY, marks=pytest.mark.soak)])
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("name", NAMES)
def test_no_request_makes_it_fail(grounds: Grounds, name: str, mode: str, examples: int) -> None:
    from requests import Session
    from schemathesis import GenerationMode

    session = Session()
    operation = operations()[name]
    chance = random.Random(f"{name} {mode}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = operation.as_strategy(GenerationMode(mode))
    sent = 0

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),  # what fails is small enough
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def send(case: Any) -> None:
        nonlocal sent
        if chance.random() < SHARE_OF_KNOWN:
            for parameter in case.path_parameters or {}:
                pool = grounds.ids["queue" if "/queue/" in case.path else parameter]
                if "/queue/" in case.path and parameter == "job_id":
                    pool = ["1", "none"]
                if "{name}" in case.path and parameter == "job_id":
                    pool = grounds.with_files
                # What ends something ends a few of them: the next ones need some, too.
                few = case.method == "DELETE" or case.path.endswith("/unregister")
                case.path_parameters[parameter] = chance.choice(pool[:3] if few else pool)
            if case.path.endswith("/poll"):
                _poll_of(case, chance.choice(grounds.workers))
        _hurry(case)
        request = case.as_transport_kwargs(base_url=grounds.server.url)
        headers = {**(request.pop("headers", None) or {}), **grounds.server.headers}
        answer = session.request(headers=headers, timeout=20, **request)
        sent += 1
        assert answer.status_code < 500, f"{request}\n{answer.text}"
        if answer.status_code >= 400 and operation.method.upper() != "HEAD":
            if answer.headers["content-type"].startswith("text/plain"):
                assert answer.status_code == 400, "uvicorn's own, of what is no HTTP"
            else:
                assert set(answer.json()["error"]) - {"items"} == {"code", "message", "what_to_do"}

    try:
        send()
    except Exception as error:
        if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
            raise
    finally:
        session.close()
    assert grounds.client.get("/livez").status_code == 200
    if mode == "positive":
        assert sent, "no request could be made"


def _poll_of(case: Any, worker_id: str) -> None:
    if isinstance(case.query, dict) and "worker_id" in case.query:
        case.query["worker_id"] = worker_id
    elif isinstance(case.body, dict) and "worker_id" in case.body:
        case.body["worker_id"] = worker_id


def _hurry(case: Any) -> None:
    """Nobody waits here: not for a job, and not for the end of a log."""
    for place in (case.query, case.body):
        if isinstance(place, dict):
            if isinstance(place.get("wait"), (int, float)) and place["wait"] > WAIT:
                place["wait"] = WAIT
            place.pop("follow", None)
            place.pop("hold", None)


# The routes of raw queues, with what the schema does not allow

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
FIELDS = (
    "jobs", "worker", "limit", "lease", "kinds", "nonce", "settlements", "claims", "id", "token",
    "action", "kind", "payload", "ids", "hint", "check", "older_than", "state", "run_at",
)  # fmt: skip
bodies = st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=5)
nested = st.fixed_dictionaries(
    {"worker": st.just("w"), "limit": st.integers(-1, 3), "lease": st.floats(-1, 10)},
    optional={name: st.lists(bodies, max_size=3) for name in ("jobs", "settlements", "claims")},
)


@pytest.mark.parametrize(
    "call",
    ["put", "claim", "cancel", "settle", "renew", "prune", "retry", "drop", "hint"],
)
def test_no_call_of_a_raw_queue_makes_it_fail(grounds: Grounds, call: str) -> None:
    @settings(max_examples=40, derandomize=True, database=None, deadline=None)
    @given(body=bodies | nested | json_values, name=st.sampled_from(("mail", "x" * 300, "%00")))
    def send(body: Any, name: str) -> None:
        text = json.dumps(body)
        answer = grounds.client.post(f"/api/queue/{name}/{call}", content=text.encode())
        assert answer.status_code < 500, f"{text}\n{answer.text}"

    send()


@pytest.mark.parametrize("path", ["", "/stats", "/jobs", "/jobs/x", "/jobs/%00", "/jobs/../x"])
def test_no_look_at_a_raw_queue_makes_it_fail(grounds: Grounds, path: str) -> None:
    for query in ("", "?keep=x", "?keep=-1", "?keep=1e999", "?limit=x", "?state=x", "?after=%00"):
        answer = grounds.client.get(f"/api/queue/mail{path}{query}")
        assert answer.status_code < 500, f"{path}{query}\n{answer.text}"
